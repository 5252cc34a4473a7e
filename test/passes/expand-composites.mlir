// Inside a kernel a softmax is its parts; the kernel keeps its name and emitter.
// RUN: mlc-opt %s -p fuse,expand-composites | FileCheck %s

// CHECK-LABEL: func.func private @k0_softmax
// CHECK-SAME: mlc.emitter = "row", mlc.hero = "softmax"
// CHECK-NOT: mlc.softmax"
// CHECK: %[[M:.*]] = "mlc.max"(%arg0)
// CHECK: "mlc.sub"(%arg0, %[[M]])
// CHECK: "mlc.exp_nonpositive"
// CHECK: "mlc.sum"
func.func @forward(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "mlc.softmax"(%x) {axis = 1 : i64} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
