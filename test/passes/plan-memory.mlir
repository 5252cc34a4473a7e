// A value that is dead leaves its bytes to the next; a result that may overwrite its operand does; outputs are the caller's.
// RUN: mlc-opt %s -p 'fuse{max-ops=1},plan-memory,check-memory-plan' | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-SAME: mlc.arena_bytes = "1024"
// CHECK: mlc.offsets = ["0"]
// CHECK: mlc.offsets = ["512"]
// CHECK: mlc.offsets = ["0"]
// CHECK: mlc.offsets = ["out"]
func.func @forward(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = "mlc.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = "mlc.flip"(%0) {axes = array<i64: 0>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = "mlc.flip"(%1) {axes = array<i64: 1>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %3 = "mlc.flip"(%2) {axes = array<i64: 0>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %3 : tensor<8x16xf32>
}
