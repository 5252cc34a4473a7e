// Rows 3072 floats apart fall into one set of the cache, which has fewer lines than a register tile has rows: the kernel that computes them moves them a line apart.
// RUN: mlc-opt %s -p pad-rows | FileCheck %s

// Of a convolution it is neighbouring pixels of the result that are read at once: with strides of 2, every second one.
// CHECK: "mlc.pad_rows"(%{{.*}}) {columns = 528 : i64} : (tensor<1x28x28x512xf32>) -> tensor<1x28x28x528xf32>
// CHECK: %[[P:.*]] = "mlc.pad_rows"(%{{.*}}) {columns = 3088 : i64} : (tensor<128x3072xf32>) -> tensor<128x3088xf32>
// CHECK: %[[S:.*]] = "mlc.slice"(%[[P]]) {limits = [128, 3072], starts = [0, 0], steps = array<i64: 1, 1>} : (tensor<128x3088xf32>) -> tensor<128x3072xf32>
// CHECK: "mlc.matmul"(%[[S]], %{{.*}})
// Rows 768 apart spread over four sets.
// CHECK-NOT: mlc.pad_rows
module attributes {mlc.machine = {name = "zen4", vector_bits = 512 : i64, registers = 32 : i64}} {
  func.func @forward(%x: tensor<128x768xf32>, %i: tensor<1x28x28x512xf32>) -> (tensor<128x768xf32>, tensor<1x14x14x512xf32>) {
    %f = "mlc.weight"() {dtype = "f32", name = "f", shape = [512, 512, 3, 3]} : () -> tensor<512x512x3x3xf32>
    %w = "mlc.weight"() {dtype = "f32", name = "w", shape = [768, 3072]} : () -> tensor<768x3072xf32>
    %v = "mlc.weight"() {dtype = "f32", name = "v", shape = [3072, 768]} : () -> tensor<3072x768xf32>
    %0 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = false} : (tensor<128x768xf32>, tensor<768x3072xf32>) -> tensor<128x3072xf32>
    %1 = "mlc.relu"(%0) : (tensor<128x3072xf32>) -> tensor<128x3072xf32>
    %2 = "mlc.matmul"(%1, %v) {transpose_a = false, transpose_b = false} : (tensor<128x3072xf32>, tensor<3072x768xf32>) -> tensor<128x768xf32>
    %3 = "mlc.conv"(%i, %f) {layout = "nhwc", groups = 1 : i64, strides = array<i64: 2, 2>, pads_low = array<i64: 1, 1>, pads_high = array<i64: 1, 1>, dilations = array<i64: 1, 1>, wide = false} : (tensor<1x28x28x512xf32>, tensor<512x512x3x3xf32>) -> tensor<1x14x14x512xf32>
    return %2, %3 : tensor<128x768xf32>, tensor<1x14x14x512xf32>
  }
}
