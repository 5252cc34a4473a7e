// Query and key are read as views: one product of twice the columns. The third layer's result is the model's own, and the
// fourth has a relu that belongs to its tiles: both stay.
// RUN: mlc-opt %s -p merge-products | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK: %[[W:.*]] = "mlc.concat"({{.*}}) {axis = 1 : i64
// CHECK: %[[P:.*]] = "mlc.matmul"(%arg0, %[[W]])
// CHECK-SAME: -> tensor<4x16xf32>
// CHECK: %[[B:.*]] = "mlc.concat"({{.*}}) {axis = 0 : i64
// CHECK: %[[S:.*]] = "mlc.add"(%[[P]], %[[B]])
// CHECK: "mlc.slice"(%[[S]]) {limits = [4, 8], starts = [0, 0]
// CHECK: "mlc.slice"(%[[S]]) {limits = [4, 16], starts = [0, 8]
// CHECK: "mlc.matmul"(%arg0, {{.*}}) {{.*}} -> tensor<4x8xf32>
// CHECK: "mlc.matmul"(%arg0, {{.*}}) {{.*}} -> tensor<4x8xf32>
func.func @forward(%x: tensor<4x8xf32>) -> (tensor<4x2x4xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %w0 = "mlc.weight"() {dtype = "f32", name = "q", shape = [8, 8]} : () -> tensor<8x8xf32>
  %w1 = "mlc.weight"() {dtype = "f32", name = "k", shape = [8, 8]} : () -> tensor<8x8xf32>
  %w2 = "mlc.weight"() {dtype = "f32", name = "v", shape = [8, 8]} : () -> tensor<8x8xf32>
  %w3 = "mlc.weight"() {dtype = "f32", name = "up", shape = [8, 8]} : () -> tensor<8x8xf32>
  %b0 = "mlc.weight"() {dtype = "f32", name = "q.bias", shape = [8]} : () -> tensor<8xf32>
  %b1 = "mlc.weight"() {dtype = "f32", name = "k.bias", shape = [8]} : () -> tensor<8xf32>
  %q0 = "mlc.matmul"(%x, %w0) {transpose_a = false, transpose_b = false} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %q1 = "mlc.add"(%q0, %b0) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %q = "mlc.reshape"(%q1) {shape = [4, 2, 4]} : (tensor<4x8xf32>) -> tensor<4x2x4xf32>
  %k0 = "mlc.matmul"(%x, %w1) {transpose_a = false, transpose_b = false} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %k1 = "mlc.add"(%k0, %b1) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %k = "mlc.reshape"(%k1) {shape = [4, 2, 4]} : (tensor<4x8xf32>) -> tensor<4x2x4xf32>
  %v = "mlc.matmul"(%x, %w2) {transpose_a = false, transpose_b = false} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %u = "mlc.matmul"(%x, %w3) {transpose_a = false, transpose_b = false} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %r = "mlc.relu"(%u) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = "mlc.add"(%q, %k) : (tensor<4x2x4xf32>, tensor<4x2x4xf32>) -> tensor<4x2x4xf32>
  return %s, %v, %r : tensor<4x2x4xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
