// The recurrent weight of an LSTM is packed with its four gates side by side; states keep their bytes.
// RUN: mlc-opt %s -p fuse,pack-weights | FileCheck %s

// CHECK-LABEL: func.func private @k0_lstm_steps
// CHECK-SAME: mlc.layouts = ["", "gates-4", "", ""]
func.func @forward(%x: tensor<3x2x1x32xf32>, %h: tensor<1x2x8xf32>, %c: tensor<1x2x8xf32>) -> tensor<3x1x2x8xf32> {
  %r = "mlc.weight"() {dtype = "f32", name = "r", shape = [1, 32, 8]} : () -> tensor<1x32x8xf32>
  %0:3 = "mlc.lstm_steps"(%x, %r, %h, %c) {direction = "forward"} : (tensor<3x2x1x32xf32>, tensor<1x32x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>) -> (tensor<3x1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>)
  return %0#0 : tensor<3x1x2x8xf32>
}
