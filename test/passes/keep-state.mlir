// A state's new value is written over the old one where nobody reads that later; else it is copied there behind all other calls.
// RUN: mlc-opt %s -p 'fuse{max-ops=1},keep-state,plan-memory,check-memory-plan' | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK: %[[NEW:.*]] = call @{{.*}}_scatter_lines(%{{.*}}) {mlc.offsets = ["out"]}
// CHECK: %[[SUM:.*]] = call @{{.*}}(%arg3) {mlc.offsets = ["0"]}
// CHECK: %[[OLD:.*]] = call @{{.*}}(%arg3) {mlc.offsets = ["out"]}
// CHECK: %[[KEPT:.*]] = call @state_copy0(%[[SUM]]) {mlc.offsets = ["out"]}
// CHECK: return %[[OLD]], %[[NEW]], %[[KEPT]]
func.func @forward(%x: tensor<1x2x8xf32>, %i: tensor<1x2x1xi64>, %cache: tensor<1x16x8xf32>, %h: tensor<4xf32>) -> (tensor<4xf32>, tensor<1x16x8xf32>, tensor<4xf32>) attributes {mlc.states = ["cache", "h"], mlc.initial = ["c", "d"]} {
  %0 = "mlc.scatter_lines"(%cache, %i, %x) {reduce = "none"} : (tensor<1x16x8xf32>, tensor<1x2x1xi64>, tensor<1x2x8xf32>) -> tensor<1x16x8xf32>
  %1 = "mlc.add"(%h, %h) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "mlc.exp"(%h) : (tensor<4xf32>) -> tensor<4xf32>
  return %2, %0, %1 : tensor<4xf32>, tensor<1x16x8xf32>, tensor<4xf32>
}
