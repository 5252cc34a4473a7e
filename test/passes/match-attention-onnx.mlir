// As PyTorch exports to ONNX: both factors scaled, keys transposed past a reshape and repeated for a group of heads, zeros for NaN.
// RUN: mlc-opt %s -p match-attention | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK: %[[K:.*]] = "mlc.reshape"(%arg1) {shape = [1, 2, 7, 64]}
// CHECK: %[[V:.*]] = "mlc.reshape"(%arg2) {shape = [1, 2, 7, 64]}
// CHECK: %[[A:.*]] = "mlc.attention"(%arg0, %[[K]], %[[V]]) {{{.*}}is_causal = false, scale = 2.500000e-01 : f64
// CHECK-NEXT: return %[[A]]
func.func @forward(%q: tensor<1x4x5x64xf32>, %k: tensor<1x2x1x7x64xf32>, %v: tensor<1x2x1x7x64xf32>) -> tensor<1x4x5x64xf32> {
  %half = "mlc.constant"() {value = [tensor<f32>, "0000003f"]} : () -> tensor<f32>
  %zero = "mlc.constant"() {value = [tensor<f32>, "00000000"]} : () -> tensor<f32>
  %0 = "mlc.broadcast_to"(%k) {shape = [1, 2, 2, 7, 64]} : (tensor<1x2x1x7x64xf32>) -> tensor<1x2x2x7x64xf32>
  %1 = "mlc.reshape"(%0) {shape = [4, 7, 64]} : (tensor<1x2x2x7x64xf32>) -> tensor<4x7x64xf32>
  %2 = "mlc.transpose"(%1) {perm = array<i64: 0, 2, 1>} : (tensor<4x7x64xf32>) -> tensor<4x64x7xf32>
  %3 = "mlc.reshape"(%2) {shape = [1, 4, 64, 7]} : (tensor<4x64x7xf32>) -> tensor<1x4x64x7xf32>
  %4 = "mlc.mul"(%3, %half) : (tensor<1x4x64x7xf32>, tensor<f32>) -> tensor<1x4x64x7xf32>
  %5 = "mlc.mul"(%q, %half) : (tensor<1x4x5x64xf32>, tensor<f32>) -> tensor<1x4x5x64xf32>
  %6 = "mlc.matmul"(%5, %4) {transpose_a = false, transpose_b = false} : (tensor<1x4x5x64xf32>, tensor<1x4x64x7xf32>) -> tensor<1x4x5x7xf32>
  %7 = "mlc.softmax"(%6) {axis = 3 : i64} : (tensor<1x4x5x7xf32>) -> tensor<1x4x5x7xf32>
  %8 = "mlc.isnan"(%7) : (tensor<1x4x5x7xf32>) -> tensor<1x4x5x7xi1>
  %9 = "mlc.where"(%8, %zero, %7) : (tensor<1x4x5x7xi1>, tensor<f32>, tensor<1x4x5x7xf32>) -> tensor<1x4x5x7xf32>
  %10 = "mlc.broadcast_to"(%v) {shape = [1, 2, 2, 7, 64]} : (tensor<1x2x1x7x64xf32>) -> tensor<1x2x2x7x64xf32>
  %11 = "mlc.reshape"(%10) {shape = [1, 4, 7, 64]} : (tensor<1x2x2x7x64xf32>) -> tensor<1x4x7x64xf32>
  %12 = "mlc.matmul"(%9, %11) {transpose_a = false, transpose_b = false} : (tensor<1x4x5x7xf32>, tensor<1x4x7x64xf32>) -> tensor<1x4x5x64xf32>
  return %12 : tensor<1x4x5x64xf32>
}
