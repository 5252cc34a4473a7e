// Views of views become one view, views that change nothing go, and transposes are taken into products.
// RUN: mlc-opt %s -p simplify | FileCheck %s

// CHECK-LABEL: func.func @two_reshapes
// CHECK: %[[R:.*]] = "mlc.reshape"(%arg0) {shape = [8, 3]}
// CHECK-NEXT: return %[[R]]
func.func @two_reshapes(%x: tensor<2x3x4xf32>) -> tensor<8x3xf32> {
  %0 = "mlc.reshape"(%x) {shape = [6, 4]} : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
  %1 = "mlc.reshape"(%0) {shape = [8, 3]} : (tensor<6x4xf32>) -> tensor<8x3xf32>
  return %1 : tensor<8x3xf32>
}

// CHECK-LABEL: func.func @transpose_and_back
// CHECK-NEXT: return %arg0
func.func @transpose_and_back(%x: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  %0 = "mlc.transpose"(%x) {perm = array<i64: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  %1 = "mlc.transpose"(%0) {perm = array<i64: 1, 2, 0>} : (tensor<4x2x3xf32>) -> tensor<2x3x4xf32>
  return %1 : tensor<2x3x4xf32>
}

// Moving a dimension of one element moves nothing in memory.
// CHECK-LABEL: func.func @transpose_of_ones
// CHECK-NOT: mlc.transpose
// CHECK: "mlc.reshape"
func.func @transpose_of_ones(%x: tensor<1x3xf32>) -> tensor<3x1xf32> {
  %0 = "mlc.transpose"(%x) {perm = array<i64: 1, 0>} : (tensor<1x3xf32>) -> tensor<3x1xf32>
  return %0 : tensor<3x1xf32>
}

// CHECK-LABEL: func.func @product_of_transposed
// CHECK-NOT: mlc.transpose
// CHECK: "mlc.matmul"(%arg0, %arg1) {transpose_a = false, transpose_b = true}
func.func @product_of_transposed(%x: tensor<5x8xf32>, %w: tensor<7x8xf32>) -> tensor<5x7xf32> {
  %0 = "mlc.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<7x8xf32>) -> tensor<8x7xf32>
  %1 = "mlc.matmul"(%x, %0) {transpose_a = false, transpose_b = false} : (tensor<5x8xf32>, tensor<8x7xf32>) -> tensor<5x7xf32>
  return %1 : tensor<5x7xf32>
}

// An elementwise op broadcasts by itself; one that would then have a smaller result keeps its operand.
// CHECK-LABEL: func.func @broadcast
// CHECK: %[[A:.*]] = "mlc.add"(%arg0, %arg1)
// CHECK: %[[B:.*]] = "mlc.broadcast_to"(%arg1)
// CHECK: "mlc.neg"(%[[B]])
func.func @broadcast(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = "mlc.broadcast_to"(%b) {shape = [4, 8]} : (tensor<8xf32>) -> tensor<4x8xf32>
  %1 = "mlc.add"(%x, %0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "mlc.broadcast_to"(%b) {shape = [4, 8]} : (tensor<8xf32>) -> tensor<4x8xf32>
  %3 = "mlc.neg"(%2) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1, %3 : tensor<4x8xf32>, tensor<4x8xf32>
}

// Zeros around the input of a convolution are its padding; around its channels they are not.
// CHECK-LABEL: func.func @padded
// CHECK: "mlc.conv"(%arg0, %{{.*}}) {{.*}}pads_high = array<i64: 2, 1>, pads_low = array<i64: 1, 0>
// CHECK: "mlc.pad"
func.func @padded(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x3x3xf32>, %v: tensor<4x5x3x3xf32>) -> (tensor<1x4x9x7xf32>, tensor<1x4x6x6xf32>) {
  %0 = "mlc.pad"(%x) {high = [0, 0, 1, 1], low = [0, 0, 1, 0], mode = "constant", value = 0.000000e+00 : f64} : (tensor<1x3x8x8xf32>) -> tensor<1x3x10x9xf32>
  %1 = "mlc.conv"(%0, %w) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nchw", pads_high = array<i64: 1, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 1, 1>, wide = false} : (tensor<1x3x10x9xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x9x7xf32>
  %2 = "mlc.pad"(%x) {high = [0, 1, 0, 0], low = [0, 1, 0, 0], mode = "constant", value = 0.000000e+00 : f64} : (tensor<1x3x8x8xf32>) -> tensor<1x5x8x8xf32>
  %3 = "mlc.conv"(%2, %v) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nchw", pads_high = array<i64: 0, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 1, 1>, wide = false} : (tensor<1x5x8x8xf32>, tensor<4x5x3x3xf32>) -> tensor<1x4x6x6xf32>
  return %1, %3 : tensor<1x4x9x7xf32>, tensor<1x4x6x6xf32>
}
