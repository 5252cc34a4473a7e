// softmax(q k^T / 8 + mask) v, spelt out, becomes attention with that scale; scores that something else reads stay.
// RUN: mlc-opt %s -p match-attention | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-NOT: mlc.softmax
// CHECK: %[[A:.*]] = "mlc.attention"(%arg0, %arg1, %arg2, %arg3) {{{.*}}is_causal = false, scale = 1.250000e-01 : f64
// CHECK-NOT: mlc.matmul
// CHECK: return %[[A]]
func.func @forward(%q: tensor<1x2x5x64xf32>, %k: tensor<1x2x7x64xf32>, %v: tensor<1x2x7x64xf32>, %mask: tensor<1x1x5x7xf32>) -> tensor<1x2x5x64xf32> {
  %0 = "mlc.matmul"(%q, %k) {transpose_a = false, transpose_b = true} : (tensor<1x2x5x64xf32>, tensor<1x2x7x64xf32>) -> tensor<1x2x5x7xf32>
  %eight = "mlc.constant"() {value = [tensor<f32>, "00000041"]} : () -> tensor<f32>
  %1 = "mlc.div"(%0, %eight) : (tensor<1x2x5x7xf32>, tensor<f32>) -> tensor<1x2x5x7xf32>
  %2 = "mlc.add"(%1, %mask) : (tensor<1x2x5x7xf32>, tensor<1x1x5x7xf32>) -> tensor<1x2x5x7xf32>
  %3 = "mlc.softmax"(%2) {axis = 3 : i64} : (tensor<1x2x5x7xf32>) -> tensor<1x2x5x7xf32>
  %4 = "mlc.matmul"(%3, %v) {transpose_a = false, transpose_b = false} : (tensor<1x2x5x7xf32>, tensor<1x2x7x64xf32>) -> tensor<1x2x5x64xf32>
  return %4 : tensor<1x2x5x64xf32>
}
