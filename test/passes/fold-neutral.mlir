// Masks of only true, gathers of all rows in order and choices that are known vanish; so do tables that need no input.
// RUN: mlc-opt %s -p fold | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-NOT: mlc.gather
// CHECK-NOT: mlc.where
// CHECK-NOT: mlc.cos
// CHECK: "mlc.reshape"(%arg0) {shape = [1, 1, 128]}
// CHECK: "mlc.broadcast_to"({{.*}}) {shape = [1, 128, 128]}
// CHECK-NOT: mlc.bitwise_and
// CHECK: "mlc.weight"() {{.*}} -> tensor<128xf32>
// CHECK-NEXT: return
func.func @forward(%m: tensor<128xi1>) -> (tensor<1x128x128xi1>, tensor<128xf32>) {
  %i = "mlc.iota"() {dtype = "i64", size = 128 : i64, start = 0 : i64, step = 1 : i64} : () -> tensor<128xi64>
  %zero = "mlc.constant"() {value = [tensor<i64>, "0000000000000000"]} : () -> tensor<i64>
  %n = "mlc.constant"() {value = [tensor<i64>, "8000000000000000"]} : () -> tensor<i64>
  %less = "mlc.lt"(%i, %zero) : (tensor<128xi64>, tensor<i64>) -> tensor<128xi1>
  %wrapped = "mlc.add"(%i, %n) : (tensor<128xi64>, tensor<i64>) -> tensor<128xi64>
  %chosen = "mlc.where"(%less, %wrapped, %i) : (tensor<128xi1>, tensor<128xi64>, tensor<128xi64>) -> tensor<128xi64>
  %key = "mlc.reshape"(%chosen) {shape = [1, 1, 128]} : (tensor<128xi64>) -> tensor<1x1x128xi64>
  %seen = "mlc.gather"(%m, %key) {axis = 0 : i64} : (tensor<128xi1>, tensor<1x1x128xi64>) -> tensor<1x1x128xi1>
  %query = "mlc.reshape"(%i) {shape = [1, 128, 1]} : (tensor<128xi64>) -> tensor<1x128x1xi64>
  %all = "mlc.ge"(%query, %zero) : (tensor<1x128x1xi64>, tensor<i64>) -> tensor<1x128x1xi1>
  %mask = "mlc.bitwise_and"(%all, %seen) : (tensor<1x128x1xi1>, tensor<1x1x128xi1>) -> tensor<1x128x128xi1>
  %angle = "mlc.cast"(%i) {dtype = "f32"} : (tensor<128xi64>) -> tensor<128xf32>
  %table = "mlc.cos"(%angle) : (tensor<128xf32>) -> tensor<128xf32>
  return %mask, %table : tensor<1x128x128xi1>, tensor<128xf32>
}
