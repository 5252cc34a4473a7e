// A kernel is a hero with what follows it; equal kernels are one function.
// RUN: mlc-opt %s -p fuse | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK: %[[A:.*]] = call @[[K:k0_matmul]](%arg0, %arg1, %arg2)
// CHECK-NEXT: %[[B:.*]] = call @[[K]](%[[A]], %arg1, %arg2)
// CHECK-NEXT: return %[[B]]

// CHECK-LABEL: func.func private @k0_matmul
// CHECK-SAME: mlc.emitter = "contract", mlc.hero = "matmul"
// CHECK: "mlc.matmul"
// CHECK-NEXT: "mlc.add"
// CHECK-NEXT: "mlc.relu"
// CHECK-NEXT: return
// CHECK-NOT: func.func
func.func @forward(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %b: tensor<8xf32>) -> tensor<8x8xf32> {
  %0 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = false} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "mlc.add"(%0, %b) : (tensor<8x8xf32>, tensor<8xf32>) -> tensor<8x8xf32>
  %2 = "mlc.relu"(%1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "mlc.matmul"(%2, %w) {transpose_a = false, transpose_b = false} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = "mlc.add"(%3, %b) : (tensor<8x8xf32>, tensor<8xf32>) -> tensor<8x8xf32>
  %5 = "mlc.relu"(%4) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %5 : tensor<8x8xf32>
}
