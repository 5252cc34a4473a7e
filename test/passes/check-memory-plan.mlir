// A plan that lets two live values share a byte is refused with the place; see check-memory-plan-arena.mlir for the arena's bounds.
// RUN: not mlc-opt %s -p check-memory-plan 2>&1 | FileCheck %s

// CHECK: error: check-memory-plan: two live values overlap at 64..192 (loc("{{.*}}check-memory-plan.mlir":16:10))
module {
  func.func private @k(%x: tensor<32xf32>) -> tensor<32xf32> attributes {mlc.emitter = "window", mlc.hero = "flip"} {
    %0 = "mlc.flip"(%x) {axes = array<i64: 0>} : (tensor<32xf32>) -> tensor<32xf32>
    return %0 : tensor<32xf32>
  }
  func.func private @k2(%x: tensor<32xf32>, %y: tensor<32xf32>) -> tensor<32xf32> attributes {mlc.emitter = "pointwise", mlc.hero = "pointwise"} {
    %0 = "mlc.add"(%x, %y) : (tensor<32xf32>, tensor<32xf32>) -> tensor<32xf32>
    return %0 : tensor<32xf32>
  }
  func.func @forward(%x: tensor<32xf32>) -> tensor<32xf32> attributes {mlc.arena_bytes = "192"} {
    %0 = func.call @k(%x) {mlc.offsets = ["0"]} : (tensor<32xf32>) -> tensor<32xf32>
    %1 = func.call @k(%0) {mlc.offsets = ["64"]} : (tensor<32xf32>) -> tensor<32xf32>
    %2 = func.call @k2(%0, %1) {mlc.offsets = ["out"]} : (tensor<32xf32>, tensor<32xf32>) -> tensor<32xf32>
    return %2 : tensor<32xf32>
  }
}
