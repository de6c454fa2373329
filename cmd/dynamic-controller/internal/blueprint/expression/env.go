package expression

import (
	"fmt"
	"slices"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/ext"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/library"
)

// language is what Kubernetes 1.37 offers to expressions (environment.MustBaseEnvSet has the list), each library in the
// version that it has there, so that what compiles does not depend on how this program was built. Its environment itself
// cannot be taken: in it all values of a list or map literal have to be of one type, which conditions never notice and
// {"name": p.name, "port": p.port} does. cel.bind and base64 are added, which templates need; authorization is left out,
// for nobody is asking.
var language = []cel.EnvOption{
	cel.EagerlyValidateDeclarations(true),
	cel.DefaultUTCTimeZone(true),
	cel.CrossTypeNumericComparisons(true),
	cel.OptionalTypes(),
	cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals()),
	cel.EnableIdentifierEscapeSyntax(),
	cel.ParserExpressionSizeLimit(MaxLength),
	cel.CostEstimatorOptions(checker.PresenceTestHasCost(false)),
	ext.Strings(ext.StringsVersion(2)),
	ext.Sets(),
	ext.TwoVarComprehensions(ext.TwoVarComprehensionsVersion(0)),
	ext.Lists(ext.ListsVersion(3), ext.ListsMaxRangeSize(MaxListItems)),
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
}

// Variable is what an expression may refer to.
type Variable struct {
	Name string
	// Schema describes the variable. What it does not describe is not checked; nil describes nothing. It is comparable.
	Schema common.Schema
	// Limited says that who writes the expressions can have the schema limit how much there is of it. What may cost too much
	// by such schemas is refused; of others only what it does cost is counted, when it runs.
	Limited bool
}

// Env compiles expressions that see the same variables.
type Env struct {
	base    *base
	env     *cel.Env
	types   map[string]*apiservercel.DeclType // of the variables
	limited map[string]bool                   // the variables whose schema limits their size
}

// base holds the parts that all environments share.
type base struct {
	env       *cel.Env
	planner   *planner
	functions map[string]*functions.Overload // the implementations that are called by guards
}

// theBase is made once: it takes milliseconds, and all others extend it.
var theBase = sync.OnceValues(func() (*base, error) {
	env, err := cel.NewEnv(language...)
	if err != nil {
		return nil, err
	}
	planner, err := newPlanner(env)
	if err != nil {
		return nil, err
	}
	overloads := map[string]*functions.Overload{}
	for name, declaration := range env.Functions() {
		if _, is := guards[name]; !is {
			continue
		}
		bindings, err := declaration.Bindings()
		if err != nil {
			return nil, err
		}
		for _, b := range bindings {
			overloads[b.Operator] = b
		}
	}
	return &base{env: env, planner: planner, functions: overloads}, nil
})

// NewEnv returns an environment with these variables, whose names are to be different identifiers.
func NewEnv(variables ...Variable) (*Env, error) {
	base, err := theBase()
	if err != nil {
		return nil, fmt.Errorf("make the environment: %w", err)
	}
	known, types := newDeclared(), make(map[string]*apiservercel.DeclType, len(variables))
	same := map[common.Schema]*apiservercel.DeclType{} // variables of one schema have one type
	limited := map[string]bool{}
	var options []cel.EnvOption
	var roots []*apiservercel.DeclType
	for _, v := range variables {
		t := same[v.Schema]
		if t == nil {
			t = known.of(v.Schema, "type of "+v.Name, 0)
			same[v.Schema] = t
		}
		types[v.Name], limited[v.Name] = t, v.Limited && t.IsObject()
		options = append(options, cel.Variable(v.Name, t.CelType()))
		if t.IsObject() && !slices.Contains(roots, t) {
			roots = append(roots, t)
		}
	}
	if len(roots) > 0 {
		provided, err := apiservercel.NewDeclTypeProvider(roots...).EnvOptions(base.env.CELTypeProvider())
		if err != nil {
			return nil, fmt.Errorf("declare the types: %w", err)
		}
		options = append(options, provided...)
	}
	env, err := base.env.Extend(options...)
	if err != nil {
		return nil, fmt.Errorf("declare the variables: %w", err)
	}
	return &Env{base: base, env: env, types: types, limited: limited}, nil
}
