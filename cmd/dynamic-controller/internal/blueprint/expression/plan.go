package expression

import (
	"context"
	"fmt"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

// This file replaces cel.Program. Each cel.Program has its own table of all functions, which takes 13 KiB, and a
// Blueprint can have a thousand expressions. Here, all expressions share one table.

// evaluate is like ContextEval of cel.Program.
func evaluate(
	ctx context.Context, program *interpreter.ObservableInterpretable, variables map[string]any,
) (out ref.Val, cost uint64, err error) {
	activation, err := interpreter.NewActivation(variables)
	if err != nil {
		return nil, 0, err
	}
	used := &meter{reservation: memory.FromContext(ctx)}
	defer used.release()
	frame, err := interpreter.NewExecutionFrame(metered{activation, used})
	if err != nil {
		return nil, 0, err
	}
	defer frame.Close()
	if err := frame.SetContext(ctx, celconfig.CheckFrequency); err != nil {
		return nil, 0, err
	}
	var tracker *interpreter.CostTracker
	defer func() {
		if tracker != nil {
			cost = tracker.ActualCost()
		}
		switch r := recover().(type) {
		case nil:
		case interpreter.EvalCancelledError:
			err = r
		case exhausted:
			err = r.error
		default:
			err = fmt.Errorf("internal error: %v", r)
		}
	}()
	out = program.ObserveExec(frame, func(state any) {
		if tracker, _ = state.(*interpreter.CostTracker); tracker != nil {
			tracker.Estimator = costs{meter: used}
		}
	})
	if failed, ok := out.(*types.Err); ok {
		return nil, 0, failed
	}
	return out, 0, nil
}

// alternatives reimplements the decorator of cel.OptionalTypes, which is not exported: or and orValue evaluate their
// argument only if the optional has no value.
func alternatives(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || len(call.Args()) != 2 || call.Function() != "or" && call.Function() != "orValue" {
		return i, nil
	}
	return alternative{i, call.Args(), call.Function() == "orValue"}, nil
}

type alternative struct {
	interpreter.InterpretableV2
	args   []interpreter.InterpretableV2
	unwrap bool
}

func (a alternative) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	first := a.args[0].Exec(frame)
	optional, ok := first.(*types.Optional)
	switch {
	case types.IsUnknownOrError(first):
		return first
	case !ok:
		return types.NoSuchOverloadErr()
	case !optional.HasValue():
		return a.args[1].Exec(frame)
	case a.unwrap:
		return optional.GetValue()
	}
	return first
}

func (a alternative) Eval(activation interpreter.Activation) ref.Val {
	return a.Exec(interpreter.AsFrame(activation))
}
