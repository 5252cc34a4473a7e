// Convolutions and pools run with the channels last; of the transposes between them only those at the edges stay.
// RUN: mlc-opt %s -p infer-layout | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-NOT: layout = "nchw"
// CHECK: %[[IN:.*]] = "mlc.transpose"(%arg0) {perm = array<i64: 0, 2, 3, 1>}
// CHECK: %[[C:.*]] = "mlc.conv"(%[[IN]], %arg1) {{.*}}layout = "nhwc"{{.*}} -> tensor<1x8x8x16xf32>
// CHECK-NEXT: %[[R:.*]] = "mlc.relu"(%[[C]]) : (tensor<1x8x8x16xf32>)
// CHECK-NEXT: %[[P:.*]] = "mlc.max_pool"(%[[R]]) {{.*}}layout = "nhwc"{{.*}} -> tensor<1x4x4x16xf32>
// CHECK-NEXT: %[[OUT:.*]] = "mlc.transpose"(%[[P]]) {{.*}}perm = array<i64: 0, 3, 1, 2>
// CHECK-NEXT: return %[[OUT]]
func.func @forward(%x: tensor<1x3x8x8xf32>, %w: tensor<16x3x1x1xf32>) -> tensor<1x16x4x4xf32> {
  %0 = "mlc.conv"(%x, %w) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nchw", pads_high = array<i64: 0, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x3x8x8xf32>, tensor<16x3x1x1xf32>) -> tensor<1x16x8x8xf32>
  %1 = "mlc.relu"(%0) : (tensor<1x16x8x8xf32>) -> tensor<1x16x8x8xf32>
  %2 = "mlc.max_pool"(%1) {dilations = array<i64: 1, 1>, kernel = array<i64: 2, 2>, layout = "nchw", pads_high = array<i64: 0, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 2, 2>} : (tensor<1x16x8x8xf32>) -> tensor<1x16x4x4xf32>
  return %2 : tensor<1x16x4x4xf32>
}
