package explain

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// withReadyWhen returns a served Blueprint whose resource a has the given readyWhen. b has none, and more is added.
func withReadyWhen(readyWhen string, more ...any) *unstructured.Unstructured {
	b := blueprintWith("")
	template := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x"}}
	resources := []any{
		map[string]any{"id": "a", "readyWhen": []any{readyWhen}, "template": template},
		map[string]any{"id": "b", "template": template},
	}
	b.Object["spec"] = map[string]any{
		"type": map[string]any{"group": "shop.example.com", "version": "v1", "kind": "Site", "schema": map[string]any{
			"properties": map[string]any{"spec": map[string]any{"type": "object"}},
		}},
		"resources": append(resources, more...),
	}
	return b
}

// Each object of a collection and each of many resources has its own state, however long the message would be.
func TestTree_EvaluatesReadyWhenOfEachChild(t *testing.T) {
	var more []any
	for i := range 12 {
		id := fmt.Sprint("r", i)
		more = append(more, map[string]any{"id": id, "readyWhen": []any{id + ".data.done == 'yes'"},
			"template": map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": id}}})
	}
	more = append(more, map[string]any{"id": "all", "readyWhen": []any{"each.data.done == 'yes'"},
		"forEach": []any{map[string]any{"tag": "${['x', 'y', 'z']}"}}, "template": map[string]any{"apiVersion": "v1",
			"kind": "ConfigMap", "metadata": map[string]any{"name": "${tag}"}}})
	root := instanceWith(withReadyWhen("true", more...), "", condition("Ready", "False", "Waiting", "something"))
	mark := func(id string) string { return ", annotations: {platform.example.com/resource: " + id + "}" }
	want := map[string]State{}
	add := func(id, name string, done bool) {
		data, state := "", Waiting
		if done {
			data, state = ", data: {done: 'yes'}", Ready
		}
		root.Children = append(root.Children, child("ConfigMap", name, mark(id), data))
		want["ConfigMap shop/"+name] = state
	}
	for i := range 12 {
		add(fmt.Sprint("r", i), fmt.Sprint("c", i), i == 3)
	}
	add("all", "item-x", false)
	add("all", "item-y", true)
	add("all", "item-z", false)
	for _, nodes := range [][]*Node{Tree(root, now).Children, Explain(root, now).Children} {
		if len(nodes) != len(want) {
			t.Errorf("got %d children, want %d", len(nodes), len(want))
		}
		for _, n := range nodes {
			if n.State != want[n.Object] || (n.Message == "") != (n.State == Ready) {
				t.Errorf("%s is %s (%s), want %s", n.Object, n.State, n.Message, want[n.Object])
			}
		}
	}
}

// If readyWhen cannot be evaluated as the platform does, the state is unknown instead of ready.
func TestTree_ReportsStatesThatItCannotFindOut(t *testing.T) {
	older := withReadyWhen("a.data.x == 'x'")
	older.Object["status"].(map[string]any)["served"] = map[string]any{"generation": int64(1)}
	for name, test := range map[string]struct {
		blueprint *unstructured.Unstructured
		kind      string
		status    string
		want      State
	}{
		"an unmet condition":        {withReadyWhen("a.data.x == 'x'"), "ConfigMap", waiting, Waiting},
		"a met condition":           {withReadyWhen("a.kind == 'ConfigMap'"), "ConfigMap", waiting, Ready},
		"a condition that fails":    {withReadyWhen("int(a.kind) > 0"), "ConfigMap", waiting, Unknown},
		"a missing value":           {withReadyWhen("a.data.x == 'x'"), "ConfigMap", waiting, Waiting},
		"a Secret":                  {withReadyWhen("true"), "Secret", waiting, Unknown},
		"an earlier generation":     {older, "ConfigMap", waiting, Unknown},
		"a Secret of a ready site":  {withReadyWhen("true"), "Secret", ready, Ready},
		"an unknown Blueprint":      {nil, "ConfigMap", waiting, Ready},
		"rules that do not compile": {withReadyWhen("a.kind =="), "ConfigMap", waiting, Unknown},
	} {
		root := instanceWith(test.blueprint, "", test.status).with(child(test.kind, "c", stage0, ""))
		if got := Tree(root, now).Children[0]; got.State != test.want {
			t.Errorf("%s: got %+v, want %s", name, got, test.want)
		}
	}
}

func TestFromCondition_AdvisesOnWhatTheInstanceWaitsFor(t *testing.T) {
	settings := map[string]any{"id": "settings", "externalRef": map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "s"}}}
	unmet := child("ConfigMap", "c", stage0, "")
	met := child("ConfigMap", "c", stage0, ", data: {x: x}")
	const condition = "a.data.x == 'x'"
	for name, test := range map[string]struct {
		root *Object
		want string
	}{
		"readyWhen": {instanceWith(withReadyWhen(condition), "", waiting).with(unmet),
			"wait. If it takes too long, compare readyWhen of a in the Blueprint with the objects"},
		"an existing object": {instanceWith(withReadyWhen(condition, settings), "", waiting).with(met),
			"wait. If it takes too long, create the object in the message if it does not exist, or correct the " +
				"externalRef of settings"},
		"another child": {instanceWith(withReadyWhen(condition), "", waiting).with(met, child(pvc, "late", stage1, unbound)),
			"wait. If it takes too long, look at PersistentVolumeClaim shop/late"},
		"a value": {instanceWith(withReadyWhen(condition), "", waiting).with(met),
			"wait. If it takes too long, find out what should create the value or the object in the message"},
	} {
		got := fromCondition(test.root, &metav1.Condition{Reason: "Waiting", Message: "x"}).Action
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// fine are the reasons that describe no problem, and those of the conditions that authors define.
var fine = regexp.MustCompile("^(Compiled|Established|Serving|Ready|RollingOut|RolloutComplete|ConditionMet|" +
	"ConditionNotMet|ValueMissing|ExpressionFailed)$")

// Each reason in the code has advice. A new one must get its own.
func TestFromCondition_AdvisesOnEachReason(t *testing.T) {
	b := &Object{Unstructured: withReadyWhen("true")}
	found := 0
	for _, dir := range []string{"../acceptance", "../instances", "../identity"} {
		object := instanceWith(b.Unstructured, "")
		if dir == "../acceptance" {
			object = b
		}
		for _, reason := range reasonsIn(t, dir) {
			if found++; fine.MatchString(reason) {
				continue
			}
			c := &metav1.Condition{Reason: reason, Message: "x"}
			switch reason { // their advice depends on the message
			case "Forbidden":
				c.Message = `User "system:serviceaccount:shop:web" cannot get resource "pods" in API group "" ` +
					`in the namespace "shop"`
				if err := unstructured.SetNestedField(b.Object, "web", "spec", "serviceAccountName"); err != nil {
					t.Fatal(err)
				}
			case "CleanupForbidden":
				c.Message += "; " + grantPermissions
			}
			if got := fromCondition(object, c).Action; strings.HasPrefix(got, "look at the conditions") {
				t.Errorf("%s: the reason %s has no advice", dir, reason)
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d reasons were found", found)
	}
}

// reasonsIn returns the values of the constants of a package whose names begin with reason or Reason.
func reasonsIn(t *testing.T, dir string) (reasons []string) {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, is := n.(*ast.ValueSpec)
			if !is || len(spec.Values) != 1 || !strings.HasPrefix(strings.ToLower(spec.Names[0].Name), "reason") {
				return true
			}
			if value, is := spec.Values[0].(*ast.BasicLit); is && value.Kind == token.STRING {
				reason, err := strconv.Unquote(value.Value)
				if err != nil {
					t.Fatal(err)
				}
				reasons = append(reasons, reason)
			}
			return true
		})
	}
	return reasons
}
