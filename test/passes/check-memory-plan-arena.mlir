// A value outside the arena is refused, for every value of a symbol.
// RUN: not mlc-opt %s -p check-memory-plan 2>&1 | FileCheck %s

// CHECK: error: check-memory-plan: a value at 0..448 is off alignment or outside 192 bytes
module attributes {mlc.symbols = {B = array<i64: 3, 100>}} {
  func.func private @k(%x: tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]> attributes {mlc.emitter = "window", mlc.hero = "flip"} {
    %0 = "mlc.flip"(%x) {axes = array<i64: 0>} : (tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]>
    return %0 : tensor<?x16xf32, ["B", "16"]>
  }
  func.func @forward(%x: tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]> attributes {mlc.arena_bytes = "192"} {
    %0 = func.call @k(%x) {mlc.offsets = ["0"]} : (tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]>
    %1 = func.call @k(%0) {mlc.offsets = ["out"]} : (tensor<?x16xf32, ["B", "16"]>) -> tensor<?x16xf32, ["B", "16"]>
    return %1 : tensor<?x16xf32, ["B", "16"]>
  }
}
