package blueprint

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// Options are what a compilation is told of the cluster. All of it may be left out: less is checked then.
type Options struct {
	// CRD is the CustomResourceDefinition that spec.type.crd names, nil as long as it is not there.
	CRD *apiextensionsv1.CustomResourceDefinition
	// Version is the version of CRD that instances are read in. Defaults to the one that is stored if it is served, and to
	// the first that is served otherwise.
	Version string
	// SchemaFor describes the objects of a kind that templates make, so that the templates and the expressions on what
	// becomes of them are checked; nil where that is not known.
	SchemaFor func(schema.GroupVersionKind) common.Schema
	// IsNamespaced tells whether objects of a kind are in namespaces, if that is known. Compile again when it is.
	IsNamespaced func(schema.GroupVersionKind) (namespaced, known bool)
	// Children limits which objects templates can create.
	Children ChildPolicy
}

// Compiled is a Blueprint that is ready to be served. It is never changed and may be used concurrently.
type Compiled struct {
	definition *apiextensionsv1.CustomResourceDefinition
	namespaced bool
	resources  []*resource // in order: each after those that it refers to

	policy            ChildPolicy
	allowedNamespaces []string
}

// resource is a compiled template and what belongs to it.
type resource struct {
	id, path   string
	index      int // in the spec
	gvk        schema.GroupVersionKind
	namespaced bool // as far as is known
	// sensitive reports whether objects can contain data of a Secret: see markSensitive.
	sensitive bool
	// computesNamespace reports whether an expression other than ownNamespace computes the namespace.
	computesNamespace bool

	body    node
	include []*expressionAt
	ready   []*expressionAt
	needs   []*resource // that its template refers to
}

// OversizedAnnotation marks a Blueprint in a cache whose spec has more than MaxSpecBytes and was cached without its
// templates and schema. Compile refuses such a Blueprint.
const OversizedAnnotation = "platform.example.com/oversized"

// Compile checks a Blueprint and makes it ready. The error is Problems: all that is wrong with it.
func Compile(b *Blueprint, options Options) (*Compiled, error) {
	c := &collector{}
	if b.Annotations[OversizedAnnotation] != "" {
		c.add("spec", "", "has more than %d bytes", MaxSpecBytes)
		return nil, c.err()
	}
	crd, err := Definition(b)
	var problems Problems
	if errors.As(err, &problems) {
		c.problems = append(c.problems, problems...)
	}
	if b.Spec.Type.CRD != "" {
		crd = options.CRD
	}
	out := &Compiled{definition: crd, namespaced: true, policy: options.Children}
	if crd != nil {
		out.namespaced = crd.Spec.Scope != apiextensionsv1.ClusterScoped
	}
	if p := b.Spec.DeletionPolicy; p != "" && p != Retain && p != Delete {
		c.add("spec.deletionPolicy", "", "is %s or %s", Retain, Delete)
	}
	out.checkAllowedNamespaces(b.Spec.AllowedNamespaces, c)
	if len(b.Spec.Resources) > MaxResources {
		c.add("spec.resources", "", "are more than %d", MaxResources)
		return nil, c.err()
	}
	parsing := &parsing{problems: c}
	resources := make([]*resource, len(b.Spec.Resources))
	ids := map[string]*resource{}
	for i, r := range b.Spec.Resources {
		resources[i] = out.parse(i, r, b.Spec.Type, options, parsing)
		checkID(resources[i], ids, c)
	}
	if !enoughExpressions(parsing, c) {
		return nil, c.err()
	}
	self, err := selfSchema(crd, options.Version)
	if err != nil {
		c.add(typePath, "", "%v", err)
	}
	schemas := schemasOf(resources, options)
	env, err := environment(self, resources, ids, schemas, parsing.found)
	if err != nil {
		c.add("spec", "", "%v", err)
		return nil, c.err()
	}
	compileAll(env, parsing.found, resources, ids, c)
	for _, r := range resources {
		r.checkFields(schemas[r.gvk], c)
	}
	if len(c.problems) > 0 {
		return nil, c.err()
	}
	if out.resources, err = ordered(resources); err != nil {
		return nil, err
	}
	if markSensitive(out.resources, parsing.found, c); len(c.problems) > 0 {
		return nil, c.err()
	}
	return out, nil
}

// Definition is the CustomResourceDefinition that was made of the Blueprint, or of the one that it names the one that the
// compilation was told of. It is not to be changed.
func (c *Compiled) Definition() *apiextensionsv1.CustomResourceDefinition { return c.definition }

// parse checks all of a resource but its expressions, which it finds.
func (c *Compiled) parse(index int, r Resource, own Type, options Options, parsing *parsing) *resource {
	path := templatePath(index)
	out := &resource{id: r.ID, index: index, path: path, body: literal{}}
	problems := parsing.problems
	for _, conditions := range []struct {
		name string
		list []string
		use  use
		to   *[]*expressionAt
	}{{"includeWhen", r.IncludeWhen, includes, &out.include}, {"readyWhen", r.ReadyWhen, readies, &out.ready}} {
		at := fmt.Sprintf("spec.resources[%d].%s", index, conditions.name)
		if len(conditions.list) > MaxConditions {
			problems.add(at, "", "has more than %d expressions", MaxConditions)
			continue
		}
		for i, s := range conditions.list {
			*conditions.to = append(*conditions.to, parsing.expression(unwrapped(s), fmt.Sprintf("%s[%d]", at, i), index, conditions.use))
		}
	}
	size, depth, _ := measure(r.Template)
	switch {
	case size > MaxTemplateBytes:
		problems.add(path, "", "has more than %d bytes", MaxTemplateBytes)
	case depth > MaxTemplateDepth:
		problems.add(path, "", "is deeper than %d", MaxTemplateDepth)
	default:
		c.checkObject(r.Template, own, options, out, problems)
		out.body = parsing.parse(r.Template, path, index)
		if object, is := known(out.body).(map[string]any); is {
			if problem := c.policy.checkValues(out, object); problem != nil {
				problems.add(problem.Path, "", "%s", problem.Reason)
			}
		}
	}
	return out
}

// unwrapped is a condition without the ${} that it may be written with, as templates are.
func unwrapped(s string) string {
	if parts, err := expression.Scan(s); err == nil && len(parts) == 1 && parts[0].Expression {
		return parts[0].Text
	}
	return s
}

var validID = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]{0,62}$`)

// taken are identifiers that mean something else to CEL.
var taken = strings.Fields("self true false null in as break const continue else for function if import let loop package " +
	"namespace return var void while int uint double bool string bytes list map type dyn null_type optional_type")

func checkID(r *resource, ids map[string]*resource, c *collector) {
	path := fmt.Sprintf("spec.resources[%d].id", r.index)
	switch {
	case !validID.MatchString(r.id):
		c.add(path, "", "%q is no identifier: letters, digits and _, at most 63, a letter first", cut(r.id, maxQuoted))
	case slices.Contains(taken, r.id):
		c.add(path, "", "%q means something else in expressions", r.id)
	case ids[r.id] != nil:
		c.add(path, "", "%q is spec.resources[%d] already", r.id, ids[r.id].index)
	default:
		ids[r.id] = r
	}
}

func enoughExpressions(p *parsing, c *collector) bool {
	switch {
	case len(p.found) > MaxExpressions:
		c.add("spec.resources", "", "has %d expressions, more than %d", len(p.found), MaxExpressions)
	case p.bytes > MaxExpressionBytes:
		c.add("spec.resources", "", "has expressions of %d bytes, more than %d", p.bytes, MaxExpressionBytes)
	default:
		return true
	}
	return false
}

// schemasOf asks once for each kind.
func schemasOf(resources []*resource, options Options) map[schema.GroupVersionKind]common.Schema {
	schemas := map[schema.GroupVersionKind]common.Schema{}
	if options.SchemaFor == nil {
		return schemas
	}
	for _, r := range resources {
		if _, has := schemas[r.gvk]; !has {
			schemas[r.gvk] = options.SchemaFor(r.gvk)
		}
	}
	return schemas
}

func environment(self common.Schema, resources []*resource, ids map[string]*resource, schemas map[schema.GroupVersionKind]common.Schema, all []*found) (*expression.Env, error) {
	variables := []expression.Variable{{Name: "self", Schema: self, Limited: true}}
	for _, r := range resources {
		if ids[r.id] != r {
			continue
		}
		v := expression.Variable{Name: r.id}
		// That of a Deployment has more than a thousand fields, and most are never read.
		if slices.ContainsFunc(all, func(f *found) bool { return strings.Contains(f.text, r.id) }) {
			v.Schema = schemas[r.gvk]
		}
		variables = append(variables, v)
	}
	return expression.NewEnv(variables...)
}

func compileAll(env *expression.Env, all []*found, resources []*resource, ids map[string]*resource, c *collector) {
	regexes := 0
	programs := map[string]*expression.Program{} // by text: equal expressions share a program
	for _, f := range all {
		if c.full() {
			return
		}
		program, err := programs[f.text], error(nil)
		if program == nil {
			program, err = env.Compile(f.text)
		}
		if err != nil {
			reason := err.Error()
			if m := undeclared.FindStringSubmatch(reason); m != nil && strings.Contains(f.text, m[1]+"(") {
				reason += "; neither CEL nor Kubernetes' libraries for it have this function"
			} else if m != nil {
				reason += "; there are self and the resources' ids"
			}
			var unknown *expression.UnknownFieldError
			if errors.As(err, &unknown) {
				reason += insteadOf(unknown)
			}
			c.add(f.path, f.text, "%s", reason)
			continue
		}
		if regexes += program.RegexInstructions(); regexes > MaxRegexes {
			c.add(f.path, f.text, "the regular expressions have %d instructions, more than %d", regexes, MaxRegexes)
			return
		}
		programs[f.text] = program
		f.compiled.Program = program
		f.checkUse(c)
		f.checkReferences(resources[f.owner], ids, c)
	}
}

var undeclared = regexp.MustCompile(`undeclared reference to '([^']*)'`)

// fewFields are as many as one reads to find the right one.
const fewFields = 8

func insteadOf(unknown *expression.UnknownFieldError) string {
	if near := nearest(unknown.Field, unknown.Beside); near != "" {
		return fmt.Sprintf(": did you mean %s?", near)
	}
	if len(unknown.Beside) == 0 || len(unknown.Beside) > fewFields {
		return ""
	}
	return "; there are " + strings.Join(unknown.Beside, ", ")
}

func (f *found) checkUse(c *collector) {
	p := f.compiled
	switch f.use {
	case withinText:
		if !p.IsPrimitive() {
			c.add(f.path, f.text, "is of type %s, and within text there can be a string, a number or a boolean", p.Type())
		}
	case aString:
		if !p.IsString() {
			c.add(f.path, f.text, "is of type %s, not string", p.Type())
		}
	case aText:
		if !p.IsText() {
			c.add(f.path, f.text, "is of type %s, not string: make it one with string()", p.Type())
		}
	case includes, readies:
		if !p.IsBool() {
			c.add(f.path, f.text, "is of type %s, not bool", p.Type())
		}
	}
}

func (f *found) checkReferences(owner *resource, ids map[string]*resource, c *collector) {
	for _, name := range f.compiled.References() {
		switch {
		case name == "self":
		case f.use == includes:
			c.add(f.path, f.text, "refers to %s: whether a resource is wanted is decided by self alone", name)
		case f.use == readies:
			if name != owner.id {
				c.add(f.path, f.text, "refers to %s: whether a resource is ready is decided by itself and self", name)
			}
		case name == owner.id:
			c.add(f.path, f.text, "refers to the resource that it makes: that is not there yet")
		default:
			if other := ids[name]; !slices.Contains(owner.needs, other) {
				owner.needs = append(owner.needs, other)
			}
		}
	}
}
