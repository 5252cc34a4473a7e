// `max-ops` bounds a kernel; an unknown option is refused with those there are.
// RUN: mlc-opt %s -p 'fuse{max-ops=2}' | FileCheck %s
// RUN: not mlc-opt %s -p 'fuse{most=2}' 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: not mlc-opt %s -p 'fuze' 2>&1 | FileCheck %s --check-prefix=NAME

// OPTION: error: fuse{most=2}: pass 'fuse' has no option 'most'; it has: max-ops
// NAME: error: fuze: there is no pass 'fuze'; there are: check-memory-plan, cse, dce,

// CHECK-LABEL: func.func @forward
// CHECK-COUNT-2: call @
// CHECK: return
func.func @forward(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "mlc.abs"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "mlc.neg"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "mlc.abs"(%1) : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "mlc.exp"(%2) : (tensor<8xf32>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}
