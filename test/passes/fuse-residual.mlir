// A residual before a norm is added on the product's tiles; an RMS norm that is spelt out is one row kernel.
// RUN: mlc-opt %s -p fuse | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-NEXT: %[[P:.*]] = call @k0_matmul(%arg0, %arg1)
// CHECK-NEXT: %[[N:.*]] = call @k1_mean(%[[P]])
// CHECK-NEXT: return %[[N]]

// CHECK-LABEL: func.func private @k0_matmul
// CHECK: "mlc.add"
// CHECK-NEXT: return
// CHECK-LABEL: func.func private @k1_mean
// CHECK: "mlc.rsqrt"
// CHECK-NEXT: "mlc.mul"
// CHECK-NEXT: return
func.func @forward(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %0 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = false} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %1 = "mlc.add"(%0, %x) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = "mlc.mul"(%1, %1) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %3 = "mlc.mean"(%2) {axes = array<i64: 1>, keepdims = true} : (tensor<8x16xf32>) -> tensor<8x1xf32>
  %eps = "mlc.constant"() {value = [tensor<f32>, "bd378635"]} : () -> tensor<f32>
  %4 = "mlc.add"(%3, %eps) : (tensor<8x1xf32>, tensor<f32>) -> tensor<8x1xf32>
  %5 = "mlc.rsqrt"(%4) : (tensor<8x1xf32>) -> tensor<8x1xf32>
  %6 = "mlc.mul"(%1, %5) : (tensor<8x16xf32>, tensor<8x1xf32>) -> tensor<8x16xf32>
  return %6 : tensor<8x16xf32>
}
