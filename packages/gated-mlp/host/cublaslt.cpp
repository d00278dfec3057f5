// SPDX-License-Identifier: Apache-2.0
#include "host/cublaslt.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include <atomic>

#include <kiln/sdk/library.hpp>

#include "host/cublaslt_api.h"
#include "host/cublaslt_plan.h"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

using gated_mlp::kCublasltAlignment;
using gated_mlp::kCublasltScratchBytes;
using sdk::find;

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // for filling the table, and making handles
constinit CublasltApi table = {};                   // complete before the first handle is seen
constinit bool table_is_complete = false;

const char* soname() {
  constexpr const char* kPrefix = "libcublasLt.so.";
  for (int i = 0; i < kLibraries.count; ++i) {
    if (strncmp(kLibraries.sonames[i], kPrefix, strlen(kPrefix)) == 0) return kLibraries.sonames[i];
  }
  return nullptr;
}

const char* fill_table(void* library) {
  const char* missing = nullptr;
  find(library, "cublasLtCreate", &table.create, &missing);
  find(library, "cublasLtGetStatusName", &table.get_status_name, &missing);
  find(library, "cublasLtMatmulDescCreate", &table.operation_create, &missing);
  find(library, "cublasLtMatmulDescDestroy", &table.operation_destroy, &missing);
  find(library, "cublasLtMatmulDescSetAttribute", &table.operation_set, &missing);
  find(library, "cublasLtMatrixLayoutCreate", &table.layout_create, &missing);
  find(library, "cublasLtMatrixLayoutDestroy", &table.layout_destroy, &missing);
  find(library, "cublasLtMatmulPreferenceCreate", &table.preference_create, &missing);
  find(library, "cublasLtMatmulPreferenceDestroy", &table.preference_destroy, &missing);
  find(library, "cublasLtMatmulPreferenceSetAttribute", &table.preference_set, &missing);
  find(library, "cublasLtMatmulAlgoGetHeuristic", &table.propose, &missing);
  find(library, "cublasLtMatmul", &table.matmul, &missing);
  return missing;
}

// The library stays loaded. A copy that the process has already, PyTorch's for one, is taken: the
// dynamic linker knows it by its soname.
int32_t load_locked(kiln_error* error) {
  if (table_is_complete) return KILN_OK;
  void* library = dlopen(soname(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return sdk::fail(error, KILN_DEVICE_ERROR,
                     "prepare: cannot load %s, which this variant needs: %.200s; install cuBLAS, "
                     "or choose a variant that does not need it",
                     soname(), why == nullptr ? "unknown reason" : why);
  }
  const char* missing = fill_table(library);
  if (missing != nullptr) {
    dlclose(library);
    return sdk::fail(error, KILN_DEVICE_ERROR,
                     "prepare: %s has no function %s; expected cuBLASLt of CUDA 12.0 or newer",
                     soname(), missing);
  }
  table_is_complete = true;
  return KILN_OK;
}

int32_t failure(const char* what, const char* call, CublasltStatus status, kiln_error* error) {
  const char* name = table.get_status_name(status);
  return sdk::fail(error, KILN_DEVICE_ERROR, "%s: %s of %s failed with %s (%d)", what, call,
                   soname(), name == nullptr ? "an unknown status" : name, status);
}

int32_t make_locked(std::atomic<void*>& place, kiln_error* error) {
  if (place.load(std::memory_order_acquire) != nullptr) return KILN_OK;  // another thread was first
  const int32_t status = load_locked(error);
  if (status != KILN_OK) return status;
  // Not destroyed: it lives as long as its context, and no call tells that a context has gone.
  CublasltHandle handle = nullptr;
  const CublasltStatus result = table.create(&handle);
  if (result != kCublasltSuccess) return failure("prepare", "cublasLtCreate", result, error);
  place.store(handle, std::memory_order_release);
  return KILN_OK;
}

// What cuBLASLt's proposal depends on. Preferences are the same for all.
struct Question {
  CublasltHandle handle;  // and so the GPU
  sdk::DType dtype;
  int64_t rows, in, out;
  bool has_bias;
  bool operator==(const Question&) const = default;
};

// A thread's latest proposals, the oldest overwritten first. Asking takes tens of microseconds of
// the host, NVIDIA's documentation says; a layer asks three times a call, and the layers of a model
// the same.
class Proposals {
 public:
  bool find(const Question& question, CublasltAlgorithm* algorithm) const {
    for (const Entry& entry : entries_) {
      if (!(entry.question == question)) continue;
      *algorithm = entry.algorithm;
      return true;
    }
    return false;
  }
  void keep(const Question& question, const CublasltAlgorithm& algorithm) {
    entries_[next_] = {question, algorithm};
    next_ = (next_ + 1) % kKept;
  }

 private:
  static constexpr int kKept = 16;
  struct Entry {
    Question question;  // without a handle: none
    CublasltAlgorithm algorithm;
  };
  Entry entries_[kKept] = {};
  int next_ = 0;
};
constinit thread_local Proposals proposals;

// The descriptors of one GEMM. Errors are kept: after the first, nothing more is asked.
class Gemm {
 public:
  Gemm(CublasltHandle handle, const Linear& linear) : handle_(handle), linear_(linear) {}
  ~Gemm() {
    if (preference_ != nullptr) table.preference_destroy(preference_);
    const CublasltLayout layouts[] = {w_, x_, y_};
    for (const CublasltLayout layout : layouts) {
      if (layout != nullptr) table.layout_destroy(layout);
    }
    if (operation_ != nullptr) table.operation_destroy(operation_);
  }
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  int32_t enqueue(void* scratch, void* stream, kiln_error* error) {
    describe();
    CublasltAlgorithm algorithm = {};
    const bool has_algorithm = choose(&algorithm);
    char what[96];
    snprintf(what, sizeof(what), "forward: x [%lld, %lld] by %s [%lld, %lld]",
             static_cast<long long>(linear_.rows), static_cast<long long>(linear_.in), linear_.name,
             static_cast<long long>(linear_.out), static_cast<long long>(linear_.in));
    if (status_ == kCublasltSuccess && !has_algorithm) {
      return sdk::fail(error, KILN_UNSUPPORTED,
                       "%s: %s proposes no algorithm, expected one; choose a variant that does not "
                       "need it",
                       what, soname());
    }
    if (status_ == kCublasltSuccess) {
      const float one = 1;
      const void* const residual = linear_.residual;
      const float beta = residual == nullptr ? 0 : 1;
      keep("cublasLtMatmul",
           table.matmul(handle_, operation_, &one, linear_.weight, w_, linear_.x, x_, &beta,
                        residual == nullptr ? linear_.y : residual, y_, linear_.y, y_, &algorithm,
                        scratch, kCublasltScratchBytes, stream));
    }
    return status_ == kCublasltSuccess ? KILN_OK : failure(what, call_, status_, error);
  }

 private:
  void keep(const char* call, CublasltStatus status) {
    if (status_ != kCublasltSuccess) return;
    status_ = status;
    call_ = call;
  }
  template <class Value>
  void set_operation(int attribute, Value value) {
    if (status_ != kCublasltSuccess) return;
    keep("cublasLtMatmulDescSetAttribute",
         table.operation_set(operation_, attribute, &value, sizeof(value)));
  }
  template <class Value>
  void set_preference(int attribute, Value value) {
    if (status_ != kCublasltSuccess) return;
    keep("cublasLtMatmulPreferenceSetAttribute",
         table.preference_set(preference_, attribute, &value, sizeof(value)));
  }
  void lay_out(CublasltLayout* layout, int64_t rows, int64_t columns) {
    if (status_ != kCublasltSuccess) return;
    const int type = linear_.dtype == sdk::DType::kFloat16 ? kCudaReal16F : kCudaReal16Bf;
    keep("cublasLtMatrixLayoutCreate",
         table.layout_create(layout, type, static_cast<uint64_t>(rows),
                             static_cast<uint64_t>(columns), rows));
  }

  // cuBLASLt counts by columns: row-major y = x w^T is y^T = w x^T there.
  void describe() {
    keep("cublasLtMatmulDescCreate",
         table.operation_create(&operation_, kCublasCompute32F, kCudaReal32F));
    set_operation(kCublasltOperationTransposeA, kCublasTranspose);
    if (linear_.bias != nullptr) {
      set_operation(kCublasltOperationEpilogue, kCublasltEpilogueBias);
      set_operation(kCublasltOperationBias, linear_.bias);
    }
    lay_out(&w_, linear_.in, linear_.out);
    lay_out(&x_, linear_.in, linear_.rows);
    lay_out(&y_, linear_.out, linear_.rows);
  }

  // False: there is none, or a call failed.
  bool choose(CublasltAlgorithm* algorithm) {
    const Question question = {handle_,    linear_.dtype, linear_.rows,
                               linear_.in, linear_.out,   linear_.bias != nullptr};
    if (proposals.find(question, algorithm)) return true;
    CublasltProposal proposal = {};
    int found = 0;
    propose(&proposal, &found);
    if (status_ != kCublasltSuccess || found == 0 || proposal.state != kCublasltSuccess) {
      return false;
    }
    *algorithm = proposal.algorithm;
    proposals.keep(question, *algorithm);
    return true;
  }

  // The first proposal, which cuBLASLt expects to be the fastest.
  void propose(CublasltProposal* proposal, int* found) {
    if (status_ != kCublasltSuccess) return;
    keep("cublasLtMatmulPreferenceCreate", table.preference_create(&preference_));
    set_preference(kCublasltPreferenceWorkspace, static_cast<uint64_t>(kCublasltScratchBytes));
    // Partial sums stay fp32: the other schemes round them to the type of y.
    set_preference(kCublasltPreferenceReductions, kCublasltReduceInComputeType);
    constexpr int kOperands[] = {kCublasltPreferenceAlignmentA, kCublasltPreferenceAlignmentB,
                                 kCublasltPreferenceAlignmentC, kCublasltPreferenceAlignmentD};
    for (const int operand : kOperands) {
      set_preference(operand, static_cast<uint32_t>(kCublasltAlignment));
    }
    if (status_ != kCublasltSuccess) return;
    keep("cublasLtMatmulAlgoGetHeuristic",
         table.propose(handle_, operation_, w_, x_, y_, y_, preference_, 1, proposal, found));
  }

  CublasltHandle handle_;
  const Linear& linear_;
  CublasltOperation operation_ = nullptr;
  CublasltLayout w_ = nullptr;
  CublasltLayout x_ = nullptr;
  CublasltLayout y_ = nullptr;
  CublasltPreference preference_ = nullptr;
  CublasltStatus status_ = kCublasltSuccess;
  const char* call_ = nullptr;  // the one that failed
};

}  // namespace

bool needs_cublaslt() {
  return soname() != nullptr;
}

int32_t enter_cublaslt(const sdk::OnDevice& gpu, CublasltHandle* handle, kiln_error* error) {
  std::atomic<void*>& place = gpu.attachment();
  int32_t status = KILN_OK;
  if (place.load(std::memory_order_acquire) == nullptr) {
    pthread_mutex_lock(&mutex);
    status = make_locked(place, error);
    pthread_mutex_unlock(&mutex);
  }
  *handle = static_cast<CublasltHandle>(place.load(std::memory_order_acquire));
  return status;
}

int32_t launch_linear(CublasltHandle handle, const Linear& linear, void* scratch, void* stream,
                      kiln_error* error) {
  return Gemm(handle, linear).enqueue(scratch, stream, error);
}

int32_t prepare_libraries(DLDevice device, kiln_error* error) {
  if (!needs_cublaslt()) return KILN_OK;
  sdk::OnDevice gpu;
  const int32_t status = gpu.enter(device, error);
  if (status != KILN_OK) return status;
  CublasltHandle handle = nullptr;
  return enter_cublaslt(gpu, &handle, error);
}

}  // namespace kiln::package
