package integration

import (
	"testing"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

// evaluated is a policy whose expressions have been compiled.
type evaluated struct {
	t        *testing.T
	policy   *admissionregistrationv1.ValidatingAdmissionPolicy
	programs map[string]cel.Program
}

func evaluate(t *testing.T, o serverfence.Options) *evaluated {
	t.Helper()
	policy, _, err := serverfence.Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	env, err := cel.NewEnv(cel.Variable("request", cel.DynType), cel.Variable("params", cel.DynType),
		cel.Variable("variables", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	e := &evaluated{t: t, policy: policy, programs: map[string]cel.Program{}}
	expressions := []string{policy.Spec.Validations[0].Expression, policy.Spec.Validations[0].MessageExpression}
	for _, c := range policy.Spec.MatchConditions {
		expressions = append(expressions, c.Expression)
	}
	for _, v := range policy.Spec.Variables {
		expressions = append(expressions, v.Expression)
	}
	for _, expression := range expressions {
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		if e.programs[expression], err = env.Program(ast); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func (e *evaluated) eval(expression string, input map[string]any) any {
	e.t.Helper()
	value, _, err := e.programs[expression].Eval(input)
	if err != nil {
		e.t.Fatalf("%s: %v", expression, err)
	}
	return value.Value()
}

// deny returns the message with which the policy denies the write of a user, or an empty string. Each Lease is the name
// and the holder.
func (e *evaluated) deny(user map[string]any, leases ...[2]string) (message string) {
	e.t.Helper()
	for _, lease := range leases {
		spec := map[string]any{}
		if lease[1] != "" {
			spec["holderIdentity"] = lease[1]
		}
		input := map[string]any{
			"request":   map[string]any{"userInfo": user},
			"params":    map[string]any{"metadata": map[string]any{"namespace": "ns", "name": lease[0]}, "spec": spec},
			"variables": map[string]any{},
		}
		if e.eval(e.policy.Spec.MatchConditions[0].Expression, input) != true {
			continue
		}
		variables := map[string]any{}
		for _, v := range e.policy.Spec.Variables {
			variables[v.Name] = e.eval(v.Expression, input)
		}
		input["variables"] = variables
		if e.eval(e.policy.Spec.Validations[0].Expression, input) != true {
			message, _ = e.eval(e.policy.Spec.Validations[0].MessageExpression, input).(string)
		}
	}
	return message
}

// sender returns the user of a write that carries a Lease and a holder. Those that are empty are missing.
func sender(name, lease, holder string) map[string]any {
	extra := map[string]any{}
	for key, value := range map[string]string{serverfence.LeaseExtra: lease, serverfence.HolderExtra: holder} {
		if value != "" {
			extra[key] = []string{value}
		}
	}
	if len(extra) == 0 {
		return map[string]any{"username": name}
	}
	return map[string]any{"username": name, "extra": extra}
}

func TestPolicy_ComparesWritesWithTheirLease(t *testing.T) {
	const user = `u"ser`
	one := serverfence.Options{Name: "p", LeaseNamespace: "ns", LeaseName: "l", Username: user}
	sharded := one
	sharded.Shards = 8
	severalValues := sender(user, "ns/l", "a")
	severalValues["extra"].(map[string]any)[serverfence.HolderExtra] = []string{"a", "a"}
	held, shards := [2]string{"l", "a"}, [][2]string{{"l", "shards=2/a"}, {"l-shard-0", "a"}, {"l-shard-1", "b"}}
	for name, test := range map[string]struct {
		options serverfence.Options
		sender  map[string]any
		leases  [][2]string
		denied  string // the Lease in the message, and what follows
	}{
		"the holder":              {one, sender(user, "ns/l", "a"), [][2]string{held}, ""},
		"another holder":          {one, sender(user, "ns/l", "b"), [][2]string{held}, "ns/l"},
		"no holder":               {one, sender(user, "ns/l", "a"), [][2]string{{"l", ""}}, "ns/l"},
		"no fields":               {one, sender(user, "", ""), [][2]string{held}, "ns/l: it names none"},
		"no holder in the write":  {one, sender(user, "ns/l", ""), [][2]string{{"l", ""}}, "ns/l"},
		"several values":          {one, severalValues, [][2]string{held}, "ns/l"},
		"another program's Lease": {one, sender(user, "ns/other", "a"), [][2]string{held}, "ns/other"},
		"a shard without Shards":  {one, sender(user, "ns/l-shard-0", "a"), [][2]string{held}, "ns/l-shard-0"},
		"a suffix of the holder":  {one, sender(user, "ns/l", "a"), [][2]string{{"l", "x/a"}}, "ns/l"},
		"a tenant":                {one, sender("tenant", "", ""), [][2]string{held}, ""},
		"for a tenant":            {one, sender("tenant", "ns/l", "a"), [][2]string{held}, ""},
		"for a tenant, late":      {one, sender("tenant", "ns/l", "b"), [][2]string{held}, "ns/l"},
		"another program":         {one, sender("other", "ns/other", "b"), [][2]string{held}, ""},
		"a missing Lease":         {one, sender(user, "ns/l", "b"), nil, ""},

		"the fleet's leader":      {sharded, sender(user, "ns/l", "a"), shards, ""},
		"a former fleet's leader": {sharded, sender(user, "ns/l", "b"), shards, "ns/l"},
		"a fleet without leader":  {sharded, sender(user, "ns/l", "a"), [][2]string{{"l", "shards=2/"}}, "ns/l"},
		"a shard's holder":        {sharded, sender(user, "ns/l-shard-1", "b"), shards, ""},
		"another shard's holder":  {sharded, sender(user, "ns/l-shard-1", "a"), shards, "ns/l-shard-1"},
		"no fields, shards":       {sharded, sender(user, "", ""), shards, "ns/l: it names none"},
		"a similar name":          {sharded, sender(user, "ns/l-shards", "a"), shards, "ns/l-shards"},
		"another program, shards": {sharded, sender("other", "ns/other-shard-1", "a"), shards, ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := ""
			if test.denied != "" {
				want = serverfence.Denied + test.denied
			}
			if got := evaluate(t, test.options).deny(test.sender, test.leases...); got != want {
				t.Errorf("got the message %q, want %q", got, want)
			}
		})
	}
}
