// Where pairs of bf16 are multiplied, both factors of a product with a weight are rounded: what is beneath a view, where it is made; sums stay f32
// RUN: mlc-opt %s --target zen5 -p reduce-precision,cse | FileCheck %s --check-prefixes=DOT
// RUN: mlc-opt %s --target x86-64-v3 -p reduce-precision,cse | FileCheck %s --check-prefixes=WEIGHTS
// RUN: not mlc-opt %s --target zen5 -p reduce-precision{dtype=i8} 2>&1 | FileCheck %s --check-prefixes=REFUSED

// DOT: %[[E:.*]] = "mlc.exp"
// DOT: %[[N:.*]] = "mlc.cast"(%[[E]]) {dtype = "bf16"} : (tensor<8x64xf32>) -> tensor<8x64xbf16>
// DOT: %[[R:.*]] = "mlc.reshape"(%[[N]]) {{.*}} -> tensor<4x2x64xbf16>
// DOT: %[[W:.*]] = "mlc.cast"(%{{.*}}) {dtype = "bf16"} : (tensor<16x64xf32>) -> tensor<16x64xbf16>
// DOT: "mlc.matmul"(%[[R]], %[[W]]) {transpose_a = false, transpose_b = true, wide = true} : (tensor<4x2x64xbf16>, tensor<16x64xbf16>) -> tensor<4x2x16xf32>
// A product of two tensors of the run keeps f32.
// DOT: "mlc.matmul"({{.*}} : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32>
// DOT: "mlc.conv"({{.*}} : (tensor<1x6x6x16xbf16>, tensor<8x16x3x3xbf16>, tensor<8xf32>) -> tensor<1x4x4x8xf32>
// A channel a group has no sum over channels.
// DOT: "mlc.conv"({{.*}} : (tensor<1x6x6x16xf32>, tensor<16x1x3x3xf32>) -> tensor<1x4x4x16xf32>

// Elsewhere weights of matmul alone are.
// WEIGHTS: "mlc.matmul"(%{{.*}}, %{{.*}}) {{.*}} : (tensor<4x2x64xf32>, tensor<16x64xbf16>) -> tensor<4x2x16xf32>
// WEIGHTS: "mlc.conv"({{.*}} : (tensor<1x6x6x16xf32>, tensor<8x16x3x3xf32>, tensor<8xf32>)

// REFUSED: reduce-precision{dtype=i8}: factors of products are f16 or bf16, not i8
func.func @forward(%x: tensor<8x64xf32>, %image: tensor<1x6x6x16xf32>) -> (tensor<4x2x16xf32>, tensor<8x8xf32>, tensor<1x4x4x8xf32>, tensor<1x4x4x16xf32>) {
  %w = "mlc.weight"() {dtype = "f32", name = "w", shape = [16, 64]} : () -> tensor<16x64xf32>
  %k = "mlc.weight"() {dtype = "f32", name = "k", shape = [8, 16, 3, 3]} : () -> tensor<8x16x3x3xf32>
  %d = "mlc.weight"() {dtype = "f32", name = "d", shape = [16, 1, 3, 3]} : () -> tensor<16x1x3x3xf32>
  %b = "mlc.weight"() {dtype = "f32", name = "b", shape = [8]} : () -> tensor<8xf32>
  %e = "mlc.exp"(%x) : (tensor<8x64xf32>) -> tensor<8x64xf32>
  %r = "mlc.reshape"(%e) {shape = [4, 2, 64]} : (tensor<8x64xf32>) -> tensor<4x2x64xf32>
  %0 = "mlc.matmul"(%r, %w) {transpose_a = false, transpose_b = true} : (tensor<4x2x64xf32>, tensor<16x64xf32>) -> tensor<4x2x16xf32>
  %1 = "mlc.matmul"(%e, %x) {transpose_a = false, transpose_b = true} : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32>
  %2 = "mlc.conv"(%image, %k, %b) {strides = array<i64: 1, 1>, pads_low = array<i64: 0, 0>, pads_high = array<i64: 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64, layout = "nhwc"} : (tensor<1x6x6x16xf32>, tensor<8x16x3x3xf32>, tensor<8xf32>) -> tensor<1x4x4x8xf32>
  %3 = "mlc.conv"(%image, %d) {strides = array<i64: 1, 1>, pads_low = array<i64: 0, 0>, pads_high = array<i64: 0, 0>, dilations = array<i64: 1, 1>, groups = 16 : i64, layout = "nhwc"} : (tensor<1x6x6x16xf32>, tensor<16x1x3x3xf32>) -> tensor<1x4x4x16xf32>
  return %0, %1, %2, %3 : tensor<4x2x16xf32>, tensor<8x8xf32>, tensor<1x4x4x8xf32>, tensor<1x4x4x16xf32>
}
