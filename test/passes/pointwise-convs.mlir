// A convolution of one tap is a product with its weights as a matrix; steps of two leave rows apart.
// RUN: mlc-opt %s -p pointwise-convs | FileCheck %s

// CHECK: %[[W:.*]] = "mlc.reshape"(%{{.*}}) {shape = [48, 32]}
// CHECK: %[[Y:.*]] = "mlc.matmul"(%arg0, %[[W]]) {{.*}}transpose_b = true{{.*}} -> tensor<1x14x14x48xf32>
// CHECK: "mlc.add"(%[[Y]], %{{.*}}) : (tensor<1x14x14x48xf32>, tensor<48xf32>)
// CHECK: "mlc.conv"
// Of a transposed one whose taps do not overlap, each pixel makes a block of its own.
// CHECK: "mlc.matmul"(%arg0, %{{.*}}) {{.*}} -> tensor<1x14x14x32xf32>
// CHECK: "mlc.transpose"(%{{.*}}) {perm = array<i64: 0, 1, 3, 2, 4, 5>} : {{.*}} -> tensor<1x14x2x14x2x8xf32>
// CHECK: "mlc.reshape"(%{{.*}}) {{.*}} -> tensor<1x28x28x8xf32>
module {
  func.func @forward(%x: tensor<1x14x14x32xf32>) -> (tensor<1x14x14x48xf32>, tensor<1x7x7x48xf32>, tensor<1x28x28x8xf32>) {
    %w = "mlc.weight"() {dtype = "f32", name = "w", shape = [48, 32, 1, 1]} : () -> tensor<48x32x1x1xf32>
    %b = "mlc.weight"() {dtype = "f32", name = "b", shape = [48]} : () -> tensor<48xf32>
    %0 = "mlc.conv"(%x, %w, %b) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", pads_high = array<i64: 0, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 1, 1>, wide = false} : (tensor<1x14x14x32xf32>, tensor<48x32x1x1xf32>, tensor<48xf32>) -> tensor<1x14x14x48xf32>
    %1 = "mlc.conv"(%x, %w) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", pads_high = array<i64: 0, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 2, 2>, wide = false} : (tensor<1x14x14x32xf32>, tensor<48x32x1x1xf32>) -> tensor<1x7x7x48xf32>
    %v = "mlc.weight"() {dtype = "f32", name = "v", shape = [32, 8, 2, 2]} : () -> tensor<32x8x2x2xf32>
    %2 = "mlc.conv_transpose"(%x, %v) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", output_pads = array<i64: 0, 0>, pads_high = array<i64: 0, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 2, 2>} : (tensor<1x14x14x32xf32>, tensor<32x8x2x2xf32>) -> tensor<1x28x28x8xf32>
    return %0, %1, %2 : tensor<1x14x14x48xf32>, tensor<1x7x7x48xf32>, tensor<1x28x28x8xf32>
  }
}
