// Autograd Functions of operators in C++. Eager code calls them in place of the Functions in halfgnn/ops, whose Python
// takes several times as long as the kernels of small graphs: halfgnn/common/autograd.py says when.
//
// An operator here is a struct that says which arguments have gradients, how its raw operator is called, what its
// backward keeps of the call, and how that calls the raw operator of the gradients. Raw operators are called by the
// dispatcher, with boxed arguments, so that this library depends on the schemas of csrc/library.cpp alone.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace halfgnn::autograd {

using c10::IValue;
using Values = std::vector<IValue>;
using Tensors = torch::autograd::variable_list;
using Needs = std::vector<bool>;  // of the operands

inline c10::OperatorHandle operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// A library by the stable ABI throws standard exceptions, whose classes autograd's engine would lose.
inline Values call(const c10::OperatorHandle& op, Values arguments) {
  try {
    op.callBoxed(arguments);
  } catch (const std::out_of_range& error) {
    TORCH_CHECK_INDEX(false, error.what());
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
  return arguments;
}

inline at::Tensor tensor_of(const IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

// None for no tensor, as schemas have it.
inline IValue value_of(const at::Tensor& tensor) { return tensor.defined() ? IValue(tensor) : IValue(); }

inline bool requires_grad(const IValue& value) { return value.isTensor() && value.toTensor().requires_grad(); }

inline Tensors tensors_of(const Values& values) {
  Tensors tensors;
  for (const IValue& value : values) tensors.push_back(tensor_of(value));
  return tensors;
}

// Appends the shapes of two operands and their dtypes; those of the other one for one that is None.
inline void append_shapes_and_dtypes(Values& x, const IValue& lhs, const IValue& rhs) {
  const at::Tensor left = tensor_of(lhs.isNone() ? rhs : lhs), right = tensor_of(rhs.isNone() ? lhs : rhs);
  x.insert(x.end(), {left.sym_sizes(), right.sym_sizes(), left.scalar_type(), right.scalar_type()});
}

inline c10::List<IValue> list_of(Values values) {
  c10::List<IValue> list(c10::AnyType::get());
  list.reserve(values.size());
  for (IValue& value : values) list.push_back(std::move(value));
  return list;
}

// The gradients by the Python Function of the operator: where they are recorded themselves, and where the backward
// needs a side of the topology that the call did not give.
inline Tensors gradients_by_python(const char* name, const Values& kept, const Tensors& grads, const Needs& needs) {
  static const c10::OperatorHandle op = operator_named("halfgnn_autograd::gradients_by_python");
  Values of_results;
  for (const at::Tensor& grad : grads) of_results.push_back(value_of(grad));
  c10::List<bool> needed;
  for (const bool need : needs) needed.push_back(need);
  return tensors_of(call(op, {std::string(name), list_of(kept), list_of(of_results), needed})[0].toListRef().vec());
}

// The operator of a raw one with its gradients. Op has
// * kName: of the raw operator.
// * kSchema: of the operator, in halfgnn_autograd. Its results are those of forward().
// * kDifferentiable: how many of them have gradients. These are the first.
// * operands(): the positions of the arguments that may have gradients.
// * forward(x): the results for the arguments x.
// * keep(x, results): makes of x what the backward reads: None for the rest, and more behind the arguments.
// * is_checked(place): whether the backward refuses a tensor of these that was modified in place meanwhile.
// * gradients(x, grads, needs): of the operands, undefined where there is no need. Not all of grads are undefined.
template <class Op>
class Function : public torch::autograd::Function<Function<Op>> {
  using Context = torch::autograd::AutogradContext;

 public:
  // operands: those that are given, for the engine; bit i of `given` says whether the i-th is.
  static Tensors forward(Context* context, at::TensorList /*operands*/, Values* arguments, int64_t given) {
    const at::AutoDispatchBelowAutograd guard;
    const Values results = Op::forward(*arguments);
    Tensors tensors = tensors_of(results);
    context->mark_non_differentiable(Tensors(tensors.begin() + Op::kDifferentiable, tensors.end()));
    context->set_materialize_grads(false);
    Op::keep(*arguments, results);
    save(context, *arguments);
    context->saved_data["given"] = given;
    return tensors;
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    const int64_t given = context->saved_data["given"].toInt();
    Needs needs;
    size_t count = 0;
    for (size_t i = 0; i < Op::operands().size(); ++i)
      needs.push_back((given >> i & 1) && context->needs_input_grad(count++));
    Tensors of_inputs(count + 2);  // undefined for the arguments and `given`
    const auto is_defined = [](const at::Tensor& grad) { return grad.defined(); };
    if (std::none_of(grads.begin(), grads.end(), is_defined)) return of_inputs;

    const Values kept = kept_by(context);
    const Tensors gradients = at::GradMode::is_enabled() ? gradients_by_python(Op::kName, kept, grads, needs)
                                                         : Op::gradients(kept, grads, needs);
    for (size_t i = 0, input = 0; i < needs.size(); ++i) {
      if (needs[i]) of_inputs[input] = gradients[i];
      input += given >> i & 1;
    }
    return of_inputs;
  }

  // The kernel of the schema.
  static void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    Values arguments(std::make_move_iterator(stack->end() - count), std::make_move_iterator(stack->end()));
    torch::jit::drop(*stack, count);
    Tensors operands;
    int64_t given = 0;
    for (size_t i = 0; i < Op::operands().size(); ++i) {
      const IValue& operand = arguments[Op::operands()[i]];
      if (!operand.isTensor()) continue;
      operands.push_back(operand.toTensor());
      given |= int64_t{1} << i;
    }
    Tensors results = Function::apply(at::TensorList(operands), &arguments, given);
    if (results.size() > Op::kDifferentiable) forget_non_differentiable(results[0]);
    for (at::Tensor& result : results) stack->emplace_back(std::move(result));
  }

 private:
  // PyTorch reads them while it makes the node, and compiled autograd refuses a node that still has some.
  static void forget_non_differentiable(const at::Tensor& result) {
    const auto node = std::static_pointer_cast<torch::autograd::CppNode<Function>>(result.grad_fn());
    if (node) node->ctx_.mark_non_differentiable({});
  }

  static void save(Context* context, Values& kept) {
    Tensors tensors;
    std::vector<int64_t> places;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i].isTensor() || !Op::is_checked(i)) continue;
      tensors.push_back(std::move(kept[i]).toTensor());
      places.push_back(static_cast<int64_t>(i));
      kept[i] = IValue();
    }
    context->save_for_backward(std::move(tensors));
    context->saved_data["values"] = list_of(std::move(kept));
    context->saved_data["places"] = std::move(places);
  }

  static Values kept_by(Context* context) {
    Tensors tensors = saved_tensors(context);
    Values kept = context->saved_data["values"].toListRef().vec();
    const std::vector<int64_t> places = context->saved_data["places"].toIntVector();
    for (size_t i = 0; i < places.size(); ++i) kept[places[i]] = std::move(tensors[i]);
    return kept;
  }

  static Tensors saved_tensors(Context* context) {
    try {
      return context->get_saved_variables();
    } catch (const c10::Error& error) {
      const std::string reason = error.what_without_backtrace();
      if (reason.find("inplace operation") == std::string::npos) throw;
      TORCH_CHECK(false, "the gradient of ", Op::kName,
                  " reads an operand or its result, which was modified in place after the call; ",
                  "write x = x + y in place of x += y, or give ", Op::kName, " a clone. ", reason);
    }
  }
};

template <class Op>
void define(torch::Library& m) {
  m.def(Op::kSchema, torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                                     torch::CppFunction::makeFromBoxedFunction<&Function<Op>::run>()));
}

}  // namespace halfgnn::autograd
