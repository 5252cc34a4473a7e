// What the declarations allow passes through unchanged: broadcast, symbolic sizes, optional operands, several results.
// RUN: mlc-opt %s | FileCheck %s
// RUN: mlc-opt %s | mlc-opt - | FileCheck %s

module attributes {mlc.symbols = {B = array<i64: 1, 8>, S = array<i64: 2, 512>}} {
  // CHECK-LABEL: func.func @sizes_are_expressions
  // CHECK: -> tensor<?xf32, ["8*B*S"]>
  func.func @sizes_are_expressions(%x: tensor<?x?x8xf32, ["B", "S", "8"]>) -> tensor<?xf32, ["8*B*S"]> {
    %0 = "mlc.reshape"(%x) {shape = ["8*B*S"]} : (tensor<?x?x8xf32, ["B", "S", "8"]>) -> tensor<?xf32, ["8*B*S"]>
    return %0 : tensor<?xf32, ["8*B*S"]>
  }
  // CHECK-LABEL: func.func @broadcast
  // CHECK: "mlc.add"(%arg0, %arg1)
  func.func @broadcast(%x: tensor<?x8xf32, ["B", "8"]>, %b: tensor<8xf32>) -> tensor<?x8xf32, ["B", "8"]> {
    %0 = "mlc.add"(%x, %b) : (tensor<?x8xf32, ["B", "8"]>, tensor<8xf32>) -> tensor<?x8xf32, ["B", "8"]>
    return %0 : tensor<?x8xf32, ["B", "8"]>
  }
  // CHECK-LABEL: func.func @bool
  // CHECK: "mlc.lt"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
  func.func @bool(%x: tensor<4xi32>, %y: tensor<4xi32>) -> tensor<4xi1> {
    %0 = "mlc.lt"(%x, %y) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    return %0 : tensor<4xi1>
  }
}
