// Ops on constants are evaluated by their own reference; a batch norm's scale and offset move into the convolution before it.
// RUN: mlc-opt %s -p fold | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-NOT: mlc.mul
// CHECK-NOT: mlc.exp
// CHECK: %[[W:.*]] = "mlc.constant"() {value = [tensor<2x1x1x1xf32>, "0000004000000040"]}
// CHECK: %[[B:.*]] = "mlc.constant"() {value = [tensor<2xf32>, "0000404000004040"]}
// CHECK: %[[C:.*]] = "mlc.conv"(%arg0, %[[W]], %[[B]])
// CHECK-NEXT: return %[[C]]
func.func @forward(%x: tensor<1x1x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %w = "mlc.full"() {dtype = "f32", shape = [2, 1, 1, 1], value = 1.0 : f64} : () -> tensor<2x1x1x1xf32>
  %0 = "mlc.conv"(%x, %w) {dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nchw", pads_high = array<i64: 0, 0>, pads_low = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<1x1x4x4xf32>, tensor<2x1x1x1xf32>) -> tensor<1x2x4x4xf32>
  %s = "mlc.constant"() {value = [tensor<2x1x1xf32>, "0000004000000040"]} : () -> tensor<2x1x1xf32>
  %1 = "mlc.mul"(%0, %s) : (tensor<1x2x4x4xf32>, tensor<2x1x1xf32>) -> tensor<1x2x4x4xf32>
  %t = "mlc.constant"() {value = [tensor<2x1x1xf32>, "0000404000004040"]} : () -> tensor<2x1x1xf32>
  %2 = "mlc.add"(%1, %t) : (tensor<1x2x4x4xf32>, tensor<2x1x1xf32>) -> tensor<1x2x4x4xf32>
  return %2 : tensor<1x2x4x4xf32>
}
