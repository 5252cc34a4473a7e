// A row is read from memory once: what a softmax keeps between its passes lies on the stack, the next row is asked for
// while the exponentials are computed, the result goes past the caches, and one division a row is left.
// RUN: mlc-opt %s --target x86-64-v3 -p fuse,expand-composites --emit llvm | FileCheck %s

// CHECK-LABEL: define hidden void @k0_softmax(ptr
// CHECK: alloca float, i64 1024, align 64
// CHECK: call void @llvm.prefetch
// CHECK: fdiv float
// CHECK-NOT: fdiv <
// CHECK: store <{{[0-9]+}} x float> {{.*}}, align {{[0-9]+}}, !nontemporal
func.func @forward(%x: tensor<8192x1024xf32>) -> tensor<8192x1024xf32> {
  %0 = "mlc.softmax"(%x) {axis = 1 : i64} : (tensor<8192x1024xf32>) -> tensor<8192x1024xf32>
  return %0 : tensor<8192x1024xf32>
}
