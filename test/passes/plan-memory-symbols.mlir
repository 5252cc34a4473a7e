// With a symbolic size offsets are expressions, multiples of 64 for every value of the symbol.
// RUN: mlc-opt %s -p 'fuse{max-ops=1},plan-memory,check-memory-plan' | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-SAME: mlc.arena_bytes = "128*B"
// CHECK: mlc.offsets = ["0"]
// CHECK: mlc.offsets = ["64*B"]
module attributes {mlc.symbols = {B = array<i64: 1, 100>}} {
  func.func @forward(%x: tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]> {
    %0 = "mlc.exp"(%x) : (tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]>
    %1 = "mlc.flip"(%0) {axes = array<i64: 0>} : (tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]>
    %2 = "mlc.flip"(%1) {axes = array<i64: 1>} : (tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]>
    return %2 : tensor<?x16xf32, ["B", "16"]>
  }
}
