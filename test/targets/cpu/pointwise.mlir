// A chain of elementwise ops is one loop over vectors: each element is read once and written once, and no value between is stored.
// RUN: mlc-opt %s --target x86-64-v3 -p fuse --emit llvm | FileCheck %s
// RUN: mlc-opt %s --target x86-64-v3 -p fuse --emit asm | FileCheck %s --check-prefix=ASM

// CHECK-LABEL: define hidden void @k0_pointwise(ptr
// CHECK: load <8 x float>
// CHECK-NOT: store <8 x float>
// CHECK: fadd <8 x float>
// CHECK-NOT: load <8 x float>
// CHECK: store <8 x float>

// ASM-LABEL: k0_pointwise:
// ASM: vaddps {{.*}}%ymm
// ASM-NOT: call
func.func @forward(%x: tensor<32x64xf32>) -> tensor<32x64xf32> {
  %0 = "mlc.abs"(%x) : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %1 = "mlc.sqrt"(%0) : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %2 = "mlc.add"(%0, %1) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  return %2 : tensor<32x64xf32>
}
