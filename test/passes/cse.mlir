// Equal ops on equal operands become one; random numbers are drawn as often as the model says.
// RUN: mlc-opt %s -p cse | FileCheck %s

// CHECK-LABEL: func.func @equal
// CHECK: %[[E:.*]] = "mlc.exp"(%arg0)
// CHECK-NEXT: "mlc.add"(%[[E]], %[[E]])
func.func @equal(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "mlc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "mlc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "mlc.add"(%0, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// CHECK-LABEL: func.func @other_attribute
// CHECK-COUNT-2: "mlc.softmax"
func.func @other_attribute(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "mlc.softmax"(%x) {axis = 0 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "mlc.softmax"(%x) {axis = 1 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = "mlc.add"(%0, %1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}
