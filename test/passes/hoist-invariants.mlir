// What a loop computes from no state of it is computed once, in front of it; what depends on a state stays.
// RUN: mlc-opt %s -p 'fuse{max-ops=1},hoist-invariants,plan-memory,check-memory-plan' | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK: call @k2_pointwise(%arg0)
// CHECK-NEXT: _loop_begin
// CHECK-NEXT: _loop_test
// CHECK-NEXT: call @k3_pointwise(%{{[0-9]+}}, %0)
// CHECK-NEXT: _loop_next
// The state's memory is written again where it was.
// CHECK: _loop_end{{.*}} {mlc.offsets = ["64"]}
func.func @forward(%x: tensor<4xf32>, %go: tensor<i1>) -> tensor<4xf32> {
  %0 = "mlc.loop_begin"(%x) {loop = 0 : i64, state = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "mlc.loop_test"(%go) {loop = 0 : i64} : (tensor<i1>) -> tensor<i1>
  %2 = "mlc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "mlc.add"(%0, %2) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = "mlc.loop_next"(%3) {loop = 0 : i64, state = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  %5 = "mlc.loop_end"(%0, %4) {loop = 0 : i64, state = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %5 : tensor<4xf32>
}
