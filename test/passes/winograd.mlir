// Convolutions of 3x3 with steps of one and enough channels: kernel tiles of whole register tiles, 6 x 16 sums.
// RUN: mlc-opt %s -p winograd | FileCheck %s

// 784 tiles of two by two pixels: 4 blocks of 198, by all 4 panels of 16 outputs in 2 shares.
// CHECK: %[[S:.*]] = "mlc.scratch"() {dtype = "f32", shape = [8, {{[0-9]+}}]}
// CHECK: "mlc.conv_winograd"(%{{.*}}, %{{.*}}, %[[S]]) {block = 198 : i64, columns = 32 : i64, group = 24 : i64, pads_high = array<i64: 1, 1>, pads_low = array<i64: 1, 1>}
// Steps of two, few channels and other kernels stay as they are.
// CHECK-COUNT-3: "mlc.conv"
module attributes {mlc.machine = {name = "x86-64-v3", vector_bits = 256 : i64, registers = 16 : i64, l2_bytes = 524288 : i64}} {
  func.func @forward(%x: tensor<1x56x56x64xf32>, %y: tensor<1x56x56x16xf32>) -> (tensor<1x56x56x64xf32>, tensor<1x28x28x64xf32>, tensor<1x56x56x64xf32>, tensor<1x56x56x64xf32>) {
    %w = "mlc.weight"() {dtype = "f32", name = "w", shape = [64, 64, 3, 3]} : () -> tensor<64x64x3x3xf32>
    %v = "mlc.weight"() {dtype = "f32", name = "v", shape = [64, 16, 3, 3]} : () -> tensor<64x16x3x3xf32>
    %u = "mlc.weight"() {dtype = "f32", name = "u", shape = [64, 64, 1, 1]} : () -> tensor<64x64x1x1xf32>
    %0 = "mlc.conv"(%x, %w) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", pads_high = array<i64: 1, 1>, pads_low = array<i64: 1, 1>, strides = array<i64: 1, 1>, wide = false} : (tensor<1x56x56x64xf32>, tensor<64x64x3x3xf32>) -> tensor<1x56x56x64xf32>
    %1 = "mlc.conv"(%x, %w) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", pads_high = array<i64: 1, 1>, pads_low = array<i64: 1, 1>, strides = array<i64: 2, 2>, wide = false} : (tensor<1x56x56x64xf32>, tensor<64x64x3x3xf32>) -> tensor<1x28x28x64xf32>
    %2 = "mlc.conv"(%y, %v) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", pads_high = array<i64: 1, 1>, pads_low = array<i64: 1, 1>, strides = array<i64: 1, 1>, wide = false} : (tensor<1x56x56x16xf32>, tensor<64x16x3x3xf32>) -> tensor<1x56x56x64xf32>
    %3 = "mlc.conv"(%x, %u) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc", pads_high = array<i64: 0, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 1, 1>, wide = false} : (tensor<1x56x56x64xf32>, tensor<64x64x1x1xf32>) -> tensor<1x56x56x64xf32>
    return %0, %1, %2, %3 : tensor<1x56x56x64xf32>, tensor<1x28x28x64xf32>, tensor<1x56x56x64xf32>, tensor<1x56x56x64xf32>
  }
}
