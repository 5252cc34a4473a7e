// Where many rows meet it, an operand of the run is packed in panels as wide as the register tile: 2 x 8 columns of f32.
// RUN: mlc-opt %s -p pack-operands | FileCheck %s

// CHECK: %[[P:.*]] = "mlc.pack_panels"(%{{.*}}) {is_transposed = true, width = 16 : i64} : (tensor<100x64xf32>) -> tensor<7x64x16xf32>
// CHECK: "mlc.packed_matmul"(%{{.*}}, %[[P]]) {columns = 100 : i64, transpose_a = false}
// A few rows are not worth it, and a weight is packed at compile time.
// CHECK-COUNT-2: "mlc.matmul"
// CHECK-NOT: pack
module attributes {mlc.machine = {name = "x86-64-v3", vector_bits = 256 : i64, registers = 16 : i64}} {
  func.func @forward(%x: tensor<256x64xf32>, %y: tensor<100x64xf32>, %z: tensor<8x64xf32>) -> (tensor<256x100xf32>, tensor<8x100xf32>, tensor<256x100xf32>) {
    %w = "mlc.weight"() {dtype = "f32", name = "w", shape = [100, 64]} : () -> tensor<100x64xf32>
    %0 = "mlc.matmul"(%x, %y) {transpose_a = false, transpose_b = true} : (tensor<256x64xf32>, tensor<100x64xf32>) -> tensor<256x100xf32>
    %1 = "mlc.matmul"(%z, %y) {transpose_a = false, transpose_b = true} : (tensor<8x64xf32>, tensor<100x64xf32>) -> tensor<8x100xf32>
    %2 = "mlc.matmul"(%x, %w) {transpose_a = false, transpose_b = true} : (tensor<256x64xf32>, tensor<100x64xf32>) -> tensor<256x100xf32>
    return %0, %1, %2 : tensor<256x100xf32>, tensor<8x100xf32>, tensor<256x100xf32>
  }
}
