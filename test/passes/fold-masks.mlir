// A causal window computed from positions becomes bounds, for every length; a mask of padding beside it stays.
// RUN: mlc-opt %s -p fold-masks | FileCheck %s

module attributes {mlc.symbols = {S = array<i64: 1, 64>}} {
// CHECK-LABEL: func.func @forward
// CHECK-NOT: mlc.iota
// CHECK: "mlc.attention"(%arg0, %arg1, %arg2, %arg3) {after = 0 : i64, before = 15 : i64, is_causal = false
func.func @forward(%q: tensor<1x2x?x8xf32, ["1", "2", "S", "8"]>, %k: tensor<1x2x?x8xf32, ["1", "2", "S", "8"]>, %v: tensor<1x2x?x8xf32, ["1", "2", "S", "8"]>, %pad: tensor<1x1x1x?xi1, ["1", "1", "1", "S"]>) -> tensor<1x2x?x8xf32, ["1", "2", "S", "8"]> {
  %place = "mlc.iota"() {dtype = "i64", size = "S", start = 0 : i64, step = 1 : i64} : () -> tensor<?xi64, ["S"]>
  %row = "mlc.reshape"(%place) {shape = ["S", 1]} : (tensor<?xi64, ["S"]>) -> tensor<?x1xi64, ["S", "1"]>
  %past = "mlc.le"(%place, %row) : (tensor<?xi64, ["S"]>, tensor<?x1xi64, ["S", "1"]>) -> tensor<?x?xi1, ["S", "S"]>
  %behind = "mlc.sub"(%row, %place) : (tensor<?x1xi64, ["S", "1"]>, tensor<?xi64, ["S"]>) -> tensor<?x?xi64, ["S", "S"]>
  %width = "mlc.constant"() {value = [tensor<i64>, "1000000000000000"]} : () -> tensor<i64>
  %near = "mlc.lt"(%behind, %width) : (tensor<?x?xi64, ["S", "S"]>, tensor<i64>) -> tensor<?x?xi1, ["S", "S"]>
  %seen = "mlc.logical_and"(%past, %near) : (tensor<?x?xi1, ["S", "S"]>, tensor<?x?xi1, ["S", "S"]>) -> tensor<?x?xi1, ["S", "S"]>
  %mask = "mlc.logical_and"(%seen, %pad) : (tensor<?x?xi1, ["S", "S"]>, tensor<1x1x1x?xi1, ["1", "1", "1", "S"]>) -> tensor<1x1x?x?xi1, ["1", "1", "S", "S"]>
  %0 = "mlc.attention"(%q, %k, %v, %mask) {after = 2147483648 : i64, before = 2147483648 : i64, is_causal = false, scale = 1.0 : f64} : (tensor<1x2x?x8xf32, ["1", "2", "S", "8"]>, tensor<1x2x?x8xf32, ["1", "2", "S", "8"]>, tensor<1x2x?x8xf32, ["1", "2", "S", "8"]>, tensor<1x1x?x?xi1, ["1", "1", "S", "S"]>) -> tensor<1x2x?x8xf32, ["1", "2", "S", "8"]>
  return %0 : tensor<1x2x?x8xf32, ["1", "2", "S", "8"]>
}
}
