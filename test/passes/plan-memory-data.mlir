// A size that data decide: memory is planned for the most it can be, and the read stays though nobody uses its result.
// RUN: mlc-opt %s -p 'dce,fuse{max-ops=1},plan-memory,check-memory-plan' | FileCheck %s

// CHECK-LABEL: func.func @forward
// CHECK-SAME: mlc.arena_bytes = "192*B+128"
// CHECK: call @k0_nonzero
// CHECK: call @k1_read_size
// CHECK: call @k2_pointwise
// CHECK: func.func private @k1_read_size
// CHECK: "mlc.read_size"(%{{.*}}) {bound = "12*B", size = "u"}
module attributes {mlc.symbols = {B = array<i64: 1, 100>, u = array<i64: 0, 1200>}} {
  func.func @forward(%x: tensor<?x12xf32, ["B", "12"]>) -> tensor<?x2xi64, ["u", "2"]> {
    %0, %1 = "mlc.nonzero"(%x) {size = "u"} : (tensor<?x12xf32, ["B", "12"]>) -> (tensor<?x2xi64, ["u", "2"]>, tensor<i64>)
    %2 = "mlc.read_size"(%1) {size = "u", bound = "12*B"} : (tensor<i64>) -> tensor<i64>
    %3 = "mlc.flip"(%0) {axes = array<i64: 1>} : (tensor<?x2xi64, ["u", "2"]>) -> tensor<?x2xi64, ["u", "2"]>
    return %3 : tensor<?x2xi64, ["u", "2"]>
  }
}
