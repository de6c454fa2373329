package expression

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/library"
)

// language lists the libraries and options of environment.MustBaseEnvSet in Kubernetes 1.37, with the same library
// versions. That environment is not used because it requires all values of a list or map literal to have the same type:
// {"name": p.name, "port": p.port} would not compile. cel.bind, base64, the reverse function for strings and kro's
// functions are added. The authorization libraries are left out.
var language = []cel.EnvOption{
	cel.EagerlyValidateDeclarations(true),
	cel.DefaultUTCTimeZone(true),
	cel.CrossTypeNumericComparisons(true),
	cel.OptionalTypes(),
	cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	cel.EnableIdentifierEscapeSyntax(),
	cel.ParserExpressionSizeLimit(MaxLength),
	cel.CostEstimatorOptions(checker.PresenceTestHasCost(false)),
	ext.Strings(ext.StringsVersion(3)),
	ext.Sets(),
	ext.TwoVarComprehensions(ext.TwoVarComprehensionsVersion(0)),
	ext.Lists(ext.ListsVersion(3), ext.ListsMaxRangeSize(maxRangeItems)),
	ext.Bindings(ext.BindingsVersion(0)),
	ext.Encoders(ext.EncodersVersion(0)),
	library.URLs(),
	library.Regex(),
	library.Lists(library.ListsVersion(1)),
	library.Quantity(),
	library.IP(),
	library.CIDR(),
	library.Format(),
	library.SemverLib(library.SemverVersion(1)),
	cel.Lib(kroLibrary{}),
}

// Variable is a variable that expressions can use.
type Variable struct {
	Name string
	// Schema describes the value of the variable. Parts that it does not describe are not checked. Schema must be
	// comparable and can be nil.
	Schema common.Schema
	// List reports whether the variable is a list. If it is, Schema describes the items of the list.
	List bool
	// Limited reports whether the author of the expressions can set limits for the sizes of values in the schema. An
	// expression that reads only such variables is rejected if its estimated cost is too high.
	Limited bool
}

// Env compiles expressions that share the same variables.
type Env struct {
	base    *base
	env     *cel.Env
	types   map[string]*apiservercel.DeclType // types of the variables
	limited map[string]bool                   // Variable.Limited by variable
	structs *apiservercel.DeclTypeProvider    // nil if no variable is an object
}

// base is shared by all environments. Programs refer to base instead of an Env, so the types of the variables can be
// freed after compilation.
type base struct {
	env         *cel.Env
	interpreter interpreter.Interpreter
	dispatcher  interpreter.Dispatcher
	costs       interpreter.PlannerOption
}

var newBase = sync.OnceValues(func() (*base, error) {
	env, err := cel.NewEnv(language...)
	if err != nil {
		return nil, err
	}
	dispatcher := interpreter.NewDispatcher()
	for name, function := range env.Functions() {
		bindings, err := function.Bindings()
		for _, b := range bindings {
			err = errors.Join(err, dispatcher.Add(checked(name, b)))
		}
		if err != nil {
			return nil, err
		}
	}
	tracker, err := interpreter.NewCostTracker(costs{},
		interpreter.PresenceTestHasCost(false), interpreter.CostTrackerLimit(PerCallLimit))
	if err != nil {
		return nil, err
	}
	provider, adapter := env.CELTypeProvider(), sorting{env.CELTypeAdapter()}
	attributes := interpreter.NewAttributeFactory(env.Container, adapter, provider)
	return &base{
		env:         env,
		dispatcher:  dispatcher,
		interpreter: interpreter.NewInterpreter(dispatcher, env.Container, provider, adapter, attributes),
		costs:       interpreter.CostObserver(interpreter.CostTrackerFactory(tracker.Clone)),
	}, nil
})

// NewEnv returns an environment with the given variables. Their names must be distinct identifiers.
func NewEnv(variables ...Variable) (*Env, error) {
	base, err := newBase()
	if err != nil {
		return nil, fmt.Errorf("create the base environment: %w", err)
	}
	e := &Env{base: base, types: make(map[string]*apiservercel.DeclType, len(variables)), limited: map[string]bool{}}
	declarations := declarations{left: maxSchemaTypes}
	bySchema := map[common.Schema]*apiservercel.DeclType{}
	var options []cel.EnvOption
	var roots []*apiservercel.DeclType
	for _, v := range variables {
		t := bySchema[v.Schema]
		if t == nil {
			t = declarations.typeOf(v.Schema, "type of "+v.Name, 0)
			bySchema[v.Schema] = t
		}
		if t.IsObject() && !slices.Contains(roots, t) {
			roots = append(roots, t)
		}
		e.limited[v.Name] = v.Limited && t.IsObject()
		if v.List {
			t = apiservercel.NewListType(t, assumedItems)
		}
		e.types[v.Name] = t
		options = append(options, cel.Variable(v.Name, t.CelType()))
	}
	if len(roots) > 0 {
		e.structs = apiservercel.NewDeclTypeProvider(roots...)
		provider, err := e.structs.EnvOptions(base.env.CELTypeProvider())
		if err != nil {
			return nil, fmt.Errorf("declare the types: %w", err)
		}
		options = append(options, provider...)
	}
	if e.env, err = base.env.Extend(options...); err != nil {
		return nil, fmt.Errorf("declare the variables: %w", err)
	}
	return e, nil
}
