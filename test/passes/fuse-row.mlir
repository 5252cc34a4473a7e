// A softmax takes in what computes its row; a value that two kernels read ends a kernel of its own; views cost no kernel.
// RUN: mlc-opt %s -p fuse | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK: %[[N:.*]] = call @k0_pointwise(%arg0)
// CHECK-NEXT: %[[S:.*]] = call @k1_softmax(%[[N]])
// CHECK-NEXT: %[[P:.*]] = call @k2_matmul(
// CHECK-NEXT: return %[[P]]

// CHECK-LABEL: func.func private @k1_softmax
// CHECK-SAME: mlc.emitter = "row"
// CHECK: "mlc.abs"
// CHECK-NEXT: "mlc.softmax"
// CHECK-LABEL: func.func private @k2_matmul
// CHECK: "mlc.transpose"
func.func @forward(%x: tensor<2x8x8xf32>) -> tensor<2x8x8xf32> {
  %0 = "mlc.neg"(%x) : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %1 = "mlc.abs"(%0) : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %2 = "mlc.softmax"(%1) {axis = 2 : i64} : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %3 = "mlc.transpose"(%0) {perm = array<i64: 1, 0, 2>} : (tensor<2x8x8xf32>) -> tensor<8x2x8xf32>
  %4 = "mlc.transpose"(%3) {perm = array<i64: 1, 0, 2>} : (tensor<8x2x8xf32>) -> tensor<2x8x8xf32>
  %5 = "mlc.matmul"(%2, %4) {transpose_a = false, transpose_b = false} : (tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  return %5 : tensor<2x8x8xf32>
}
