// Code is made of kernels for a machine: what is missing is said.
// RUN: not mlc-opt %s --emit asm 2>&1 | FileCheck %s --check-prefix=MACHINE
// RUN: not mlc-opt %s --emit asm --target x86-64-v3 2>&1 | FileCheck %s --check-prefix=KERNELS
// RUN: not mlc-opt %s --emit ptx 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not mlc-opt %s --target nosuch 2>&1 | FileCheck %s --check-prefix=TARGET

// MACHINE: error: the module has no mlc.machine attribute: compile for a target, or add one to the .mlir
// KERNELS: error: --emit asm: the module has no kernels; run fuse first
// FORM: error: --emit ptx: choose ir, l2, llvm, asm
// TARGET: error: there is no target 'nosuch'; there are: host, x86-64-v3
func.func @forward(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
