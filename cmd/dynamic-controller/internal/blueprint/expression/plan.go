package expression

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// planner turns checked expressions into steps, which can be evaluated. All expressions share one planner.
//
// It replaces cel.Env.Program. Each program of cel-go holds the environment with its types, a dispatcher with an entry
// for each of some 300 functions and a cost tracker, which takes 18 KB however small the expression is. An expression
// that is planned here holds only its own steps. Evaluation does not need the types of the variables, because all
// values are plain JSON.
type planner struct {
	interpreter interpreter.Interpreter
	costs       interpreter.PlannerOption
}

// newPlanner returns a planner for expressions checked in env or in an extension of it.
func newPlanner(env *cel.Env) (*planner, error) {
	dispatcher := interpreter.NewDispatcher()
	for name, declaration := range env.Functions() {
		overloads, err := declaration.Bindings()
		if err == nil {
			err = dispatcher.Add(overloads...)
		}
		if err != nil {
			return nil, fmt.Errorf("bind the function %s: %w", name, err)
		}
	}
	tracker, err := costTracker(env)
	if err != nil {
		return nil, err
	}
	provider, adapter := env.CELTypeProvider(), env.CELTypeAdapter()
	attributes := interpreter.NewAttributeFactory(env.Container, adapter, provider)
	return &planner{
		interpreter: interpreter.NewInterpreter(dispatcher, env.Container, provider, adapter, attributes),
		costs:       interpreter.CostObserver(interpreter.CostTrackerFactory(tracker.Clone)),
	}, nil
}

// costTracker returns the cost tracker that a program of the environment would use. It includes the cost functions of
// the libraries.
func costTracker(env *cel.Env) (tracker *interpreter.CostTracker, err error) {
	checked, issues := env.Compile("true")
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	_, err = env.Program(checked,
		cel.EvalOptions(cel.OptTrackCost),
		cel.CostTracking(&costs{}),
		cel.CostLimit(PerCallLimit),
		cel.CostTrackerOptions(interpreter.PresenceTestHasCost(false), func(t *interpreter.CostTracker) error {
			tracker = t
			return nil
		}),
	)
	return tracker, err
}

// plan applies the decorators before those that optimize and that count costs.
func (p *planner) plan(checked *ast.AST, decorators ...interpreter.InterpretableDecoratorV2) (steps, error) {
	options := []interpreter.PlannerOption{interpreter.CustomDecoratorV2(alternatives)}
	for _, decorator := range decorators {
		options = append(options, interpreter.CustomDecoratorV2(decorator))
	}
	planned, err := p.interpreter.NewInterpretable(checked, append(options,
		interpreter.InterruptableEval(), interpreter.Optimize(), p.costs)...)
	if err != nil {
		return steps{}, err
	}
	observable, is := planned.(*interpreter.ObservableInterpretable)
	if !is {
		return steps{}, errors.New("the costs of the expression are not counted")
	}
	return steps{observable}, nil
}

// steps is a planned expression. It may be used concurrently.
type steps struct {
	*interpreter.ObservableInterpretable
}

// evaluate is cel.Program's ContextEval. It returns what the evaluation cost, also with an error.
func (s steps) evaluate(ctx context.Context, variables map[string]any) (out ref.Val, cost uint64, err error) {
	frame, err := interpreter.NewExecutionFrame(variables)
	if err != nil {
		return nil, 0, err
	}
	defer frame.Close()
	if err := frame.SetContext(ctx, celconfig.CheckFrequency); err != nil {
		return nil, 0, err
	}
	var tracker *interpreter.CostTracker
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interpreter.EvalCancelledError:
			err = r
		default:
			err = fmt.Errorf("internal error: %v", r)
		}
		if tracker != nil {
			cost = tracker.ActualCost()
		}
	}()
	out = s.ObserveExec(frame, func(state any) {
		if t, is := state.(*interpreter.CostTracker); is {
			tracker = t
		}
	})
	if failed, is := out.(*types.Err); is {
		return nil, 0, failed
	}
	return out, 0, nil
}

// alternatives makes or and orValue evaluate their argument only if the optional has no value, like the decorator of
// cel.OptionalTypes, which is not exported.
func alternatives(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, is := i.(interpreter.InterpretableCall)
	if !is || len(call.Args()) != 2 {
		return i, nil
	}
	overload := call.OverloadID()
	switch {
	case call.Function() == "or" && (overload == "" || overload == "optional_or_optional"):
		return alternative{call.ID(), call.Args()[0], call.Args()[1], false}, nil
	case call.Function() == "orValue" && (overload == "" || overload == "optional_orValue_value"):
		return alternative{call.ID(), call.Args()[0], call.Args()[1], true}, nil
	}
	return i, nil
}

// alternative yields an optional, or its value if unwrap is set. If the optional has no value, it yields otherwise.
type alternative struct {
	id                  int64
	optional, otherwise interpreter.InterpretableV2
	unwrap              bool
}

func (a alternative) ID() int64 { return a.id }

func (a alternative) Eval(vars interpreter.Activation) ref.Val {
	return a.Exec(interpreter.AsFrame(vars))
}

func (a alternative) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	switch v := a.optional.Exec(frame).(type) {
	case *types.Err, *types.Unknown:
		return v
	case *types.Optional:
		switch {
		case !v.HasValue():
			return a.otherwise.Exec(frame)
		case a.unwrap:
			return v.GetValue()
		}
		return v
	default:
		return types.NoSuchOverloadErr()
	}
}
