// The weight of a product is packed at compile time, in the layout its transposition asks for; an input is not.
// RUN: mlc-opt %s -p fuse,pack-weights | FileCheck %s

// CHECK-LABEL: func.func private @k0_matmul
// CHECK-SAME: mlc.layouts = ["", "panels-transposed"]
// CHECK-LABEL: func.func private @k1_matmul
// CHECK-NOT: mlc.layouts
func.func @forward(%x: tensor<8x16xf32>, %y: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %w = "mlc.weight"() {dtype = "f32", name = "w", shape = [8, 16]} : () -> tensor<8x16xf32>
  %0 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = true} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
  %1 = "mlc.matmul"(%0, %y) {transpose_a = false, transpose_b = false} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}
