// A composite over its last dimension waits for its kernel; over another it becomes its parts. Reductions keep dimensions.
// RUN: mlc-opt %s -p decompose | FileCheck %s

// CHECK-LABEL: func.func @softmax
// CHECK: "mlc.softmax"(%arg0) {axis = 1 : i64}
// CHECK-NOT: "mlc.softmax"
// CHECK: "mlc.exp_nonpositive"
func.func @softmax(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "mlc.softmax"(%x) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "mlc.softmax"(%0) {axis = 0 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @sum
// CHECK: %[[S:.*]] = "mlc.sum"(%arg0) {{.*}}keepdims = true{{.*}} -> tensor<4x1xf32>
// CHECK-NEXT: "mlc.reshape"(%[[S]]) {shape = [4]}
func.func @sum(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %0 = "mlc.sum"(%x) {axes = array<i64: 1>, keepdims = false} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
