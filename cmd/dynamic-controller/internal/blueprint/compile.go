package blueprint

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// Options describe the cluster. All fields are optional, but checks that need a missing field are skipped.
type Options struct {
	// CRD is the CustomResourceDefinition that spec.type.crd names, or nil if it does not exist.
	CRD *apiextensionsv1.CustomResourceDefinition
	// Version is the version in which instances are read. Defaults to VersionOf(CRD).
	Version string
	// SchemaFor returns the schema of a kind, or nil if it is unknown.
	SchemaFor func(schema.GroupVersionKind) common.Schema
	// IsNamespaced reports whether a kind is namespaced, if that is known.
	IsNamespaced func(schema.GroupVersionKind) (namespaced, known bool)
	// Namespaces lists the namespaces to which the platform is limited. If it is empty, instances and children can be in
	// any namespace.
	Namespaces []string
}

// Compiled is a Blueprint that can be served. It is immutable and safe for concurrent use.
type Compiled struct {
	definition         *apiextensionsv1.CustomResourceDefinition
	namespaced         bool
	resources          []*resource // each after those that it refers to
	allowedNamespaces  []string
	namespaces         []string // see Options
	serviceAccountName string
}

// Template describes a compiled template.
type Template struct {
	ID         string
	Path       string // as in problems: spec.resources[2].template
	GVK        schema.GroupVersionKind
	Namespaced bool     // a guess if Options.IsNamespaced does not return the scope of the kind.
	Needs      []string // the ids that the template refers to

	DeletionPolicy DeletionPolicy // of the children
	Adopt          bool           // whether existing objects are taken over
}

// resource is a compiled Template.
type resource struct {
	Template
	index int // in the spec
	// sensitive reports whether objects can contain data of a Secret: see markSensitive.
	sensitive bool
	// computesNamespace reports whether an expression other than ownNamespace computes the namespace.
	computesNamespace bool

	body    node
	include []*expressionAt
	ready   []*expressionAt
	needs   []*resource
}

// OversizedAnnotation marks a cached Blueprint whose spec has more than MaxSpecBytes, and was cached without its
// templates and schema. Compile rejects it.
const OversizedAnnotation = "platform.example.com/oversized"

// Compile compiles a Blueprint. The error is of type Problems, and lists the problems of the schema and of all
// templates.
func Compile(b *Blueprint, options Options) (*Compiled, error) {
	c := &collector{}
	if b.Annotations[OversizedAnnotation] != "" {
		c.add("spec", "", "has more than %d bytes", MaxSpecBytes)
		return nil, c.err()
	}
	crd := define(b, c)
	if b.Spec.Type.CRD != "" {
		crd = options.CRD
	}
	out := &Compiled{
		definition: crd, namespaced: b.Spec.Type.Scope != apiextensionsv1.ClusterScoped,
		allowedNamespaces: b.Spec.AllowedNamespaces, serviceAccountName: b.Spec.ServiceAccountName,
		namespaces: options.Namespaces,
	}
	if crd != nil {
		out.namespaced = crd.Spec.Scope != apiextensionsv1.ClusterScoped
	}
	if len(out.namespaces) > 0 && !out.namespaced {
		c.add(typePath, "", "must be namespaced, because %s", limited)
	}
	checkSpec(&b.Spec, c)
	if len(b.Spec.Resources) > MaxResources {
		c.add("spec.resources", "", "has more than %d items", MaxResources)
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
	if err != nil && len(c.problems) == 0 {
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
		r.checkFields(schemas[r.GVK], c)
	}
	if out.resources = ordered(resources, c); len(c.problems) == 0 {
		markSensitive(out.resources, parsing.found, c)
	}
	if len(c.problems) > 0 {
		return nil, c.err()
	}
	return out, nil
}

// Definition returns the CustomResourceDefinition made for the Blueprint, or Options.CRD. It must not be modified.
func (c *Compiled) Definition() *apiextensionsv1.CustomResourceDefinition { return c.definition }

// ServiceAccountName returns spec.serviceAccountName.
func (c *Compiled) ServiceAccountName() string { return c.serviceAccountName }

// Templates returns the templates, each after those that it refers to. Children must be deleted in the reverse order.
func (c *Compiled) Templates() []Template {
	out := make([]Template, len(c.resources))
	for i, r := range c.resources {
		out[i] = r.Template
		for _, o := range r.needs {
			out[i].Needs = append(out[i].Needs, o.ID)
		}
	}
	return out
}

// Kinds returns the sorted kinds of all templates.
func (c *Compiled) Kinds() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	for _, r := range c.resources {
		out = append(out, r.GVK)
	}
	slices.SortFunc(out, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// checkSpec includes checks that the CustomResourceDefinition of Blueprints also makes, because stored revisions can be
// older than the CustomResourceDefinition.
func checkSpec(s *Spec, c *collector) {
	checkDeletionPolicy(s.DeletionPolicy, "spec.deletionPolicy", c)
	if s.ServiceAccountName != "" && len(validation.IsDNS1123Subdomain(s.ServiceAccountName)) > 0 {
		c.add("spec.serviceAccountName", "", "%q is not a valid name of a ServiceAccount",
			cut(s.ServiceAccountName, maxQuoted))
	}
	checkAllowedNamespaces(s.AllowedNamespaces, c)
}

func checkDeletionPolicy(p DeletionPolicy, path string, c *collector) {
	if p != "" && p != Retain && p != Delete {
		c.add(path, "", "must be %s or %s", Delete, Retain)
	}
}

// parse checks a resource, except for its expressions.
func (c *Compiled) parse(index int, r Resource, own Type, options Options, parsing *parsing) *resource {
	at := fmt.Sprintf("spec.resources[%d]", index)
	out := &resource{index: index, body: literal{}, Template: Template{
		ID: r.ID, Path: at + ".template", DeletionPolicy: cmp.Or(r.DeletionPolicy, Delete), Adopt: r.Adopt,
	}}
	out.include = parsing.conditions(r.IncludeWhen, at+".includeWhen", index, includes)
	out.ready = parsing.conditions(r.ReadyWhen, at+".readyWhen", index, readies)
	problems := parsing.problems
	checkDeletionPolicy(r.DeletionPolicy, at+".deletionPolicy", problems)
	size, depth, _ := measure(r.Template)
	switch {
	case size > MaxTemplateBytes:
		problems.add(out.Path, "", "has more than %d bytes", MaxTemplateBytes)
	case depth > MaxTemplateDepth:
		problems.add(out.Path, "", "has more than %d levels", MaxTemplateDepth)
	default:
		c.checkObject(r.Template, own, options, out, problems)
		out.body = parsing.parse(r.Template, out.Path, index)
	}
	return out
}

var validID = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]{0,62}$`)

// reservedIDs are identifiers that have a meaning in CEL.
var reservedIDs = strings.Fields("self true false null in as break const continue else for function if import let " +
	"loop package namespace return var void while int uint double bool string bytes list map type dyn null_type " +
	"optional_type")

func checkID(r *resource, ids map[string]*resource, c *collector) {
	path := fmt.Sprintf("spec.resources[%d].id", r.index)
	switch {
	case !validID.MatchString(r.ID):
		c.add(path, "", "%q must be an identifier: a letter, then at most 62 letters, digits and underscores",
			cut(r.ID, maxQuoted))
	case slices.Contains(reservedIDs, r.ID):
		c.add(path, "", "%q is reserved by CEL", r.ID)
	case ids[r.ID] != nil:
		c.add(path, "", "%q is already the id of spec.resources[%d]", r.ID, ids[r.ID].index)
	default:
		ids[r.ID] = r
	}
}

func enoughExpressions(p *parsing, c *collector) bool {
	switch {
	case len(p.found) > MaxExpressions:
		c.add("spec.resources", "", "has %d expressions, more than %d", len(p.found), MaxExpressions)
	case p.bytes > MaxExpressionBytes:
		c.add("spec.resources", "", "has %d bytes of expressions, more than %d", p.bytes, MaxExpressionBytes)
	default:
		return true
	}
	return false
}

// schemasOf requests each schema once.
func schemasOf(resources []*resource, options Options) map[schema.GroupVersionKind]common.Schema {
	schemas := map[schema.GroupVersionKind]common.Schema{}
	if options.SchemaFor == nil {
		return schemas
	}
	for _, r := range resources {
		if _, has := schemas[r.GVK]; !has {
			schemas[r.GVK] = options.SchemaFor(r.GVK)
		}
	}
	return schemas
}

func environment(self common.Schema, resources []*resource, ids map[string]*resource,
	schemas map[schema.GroupVersionKind]common.Schema, all []*found,
) (*expression.Env, error) {
	variables := []expression.Variable{{Name: "self", Schema: self, Limited: true}}
	for _, r := range resources {
		if ids[r.ID] != r {
			continue
		}
		v := expression.Variable{Name: r.ID}
		// Only schemas that expressions can use are declared, because schemas are large. The schema of a Deployment has more
		// than a thousand fields.
		if slices.ContainsFunc(all, func(f *found) bool { return strings.Contains(f.text, r.ID) }) {
			v.Schema = schemas[r.GVK]
		}
		variables = append(variables, v)
	}
	return expression.NewEnv(variables...)
}

func compileAll(env *expression.Env, all []*found, resources []*resource, ids map[string]*resource, c *collector) {
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
			c.add(f.path, f.text, "%s", f.explainCompile(err))
			continue
		}
		programs[f.text] = program
		f.compiled.Program = program
		f.checkUse(c)
		f.checkReferences(resources[f.owner], ids, c)
	}
}

var (
	undeclared  = regexp.MustCompile(`^undeclared reference to '([^']*)'`)
	parserError = regexp.MustCompile("no viable alternative|(mismatched|extraneous) input|token recognition|missing '")
	position    = regexp.MustCompile(` ?\(line \d+, column \d+\)$`)
)

// explainCompile returns the compiler's error without the output of the parser, and with a suggestion.
func (f *found) explainCompile(err error) string {
	reason := err.Error()
	where := position.FindString(reason)
	reason = strings.TrimSuffix(reason, where)
	var unknown *expression.UnknownFieldError
	m := undeclared.FindStringSubmatch(reason)
	switch {
	case m != nil && strings.Contains(f.text, m[1]+"("):
		reason = fmt.Sprintf("unknown function %q", m[1])
	case m != nil:
		reason = fmt.Sprintf("unknown name %q; use self or the id of a resource", m[1])
	case errors.As(err, &unknown):
		return fmt.Sprintf("unknown field %q%s%s", unknown.Field, where, insteadOf(unknown))
	case parserError.MatchString(reason):
		reason = "syntax error"
	}
	return reason + where
}

// maxSuggestedFields is the maximum length of the list of fields that is shown if no field has a similar name. A longer
// list is not shown.
const maxSuggestedFields = 8

func insteadOf(unknown *expression.UnknownFieldError) string {
	if suggestion := suggest(unknown.Field, unknown.Beside); suggestion != "" {
		return suggestion
	}
	if len(unknown.Beside) == 0 || len(unknown.Beside) > maxSuggestedFields {
		return ""
	}
	return "; the fields are " + strings.Join(unknown.Beside, ", ")
}

func (f *found) checkUse(c *collector) {
	p := f.compiled
	switch f.use {
	case withinText:
		if !p.IsPrimitive() {
			c.add(f.path, f.text, "must be a string, number or boolean within text, not %s", p.Type())
		}
	case aString:
		if !p.IsString() {
			c.add(f.path, f.text, "must be a string, not %s", p.Type())
		}
	case aText:
		if !p.IsText() {
			c.add(f.path, f.text, "must be a string, not %s; convert it with string()", p.Type())
		}
	case includes, readies:
		if !p.IsBool() {
			c.add(f.path, f.text, "must be a bool, not %s", p.Type())
		}
	}
}

func (f *found) checkReferences(owner *resource, ids map[string]*resource, c *collector) {
	for _, name := range f.compiled.References() {
		switch {
		case name == "self":
		case f.use == includes:
			c.add(f.path, f.text, "must not refer to %s; includeWhen can read only self", name)
		case f.use == readies:
			if name != owner.ID {
				c.add(f.path, f.text, "must not refer to %s; readyWhen can read only %s and self", name, owner.ID)
			}
		case name == owner.ID:
			c.add(f.path, f.text, "must not refer to the resource itself, which does not exist yet")
		default:
			if other := ids[name]; !slices.Contains(owner.needs, other) {
				owner.needs = append(owner.needs, other)
			}
		}
	}
}

// ordered sorts resources so that each comes after those that it refers to, and otherwise keeps their order. It reports
// a cycle, if there is one.
func ordered(resources []*resource, c *collector) []*resource {
	out := make([]*resource, 0, len(resources))
	done := make(map[*resource]bool, len(resources))
	pending := func(r *resource) bool { return !done[r] }
	for len(out) < len(resources) {
		next := slices.IndexFunc(resources, func(r *resource) bool {
			return !done[r] && !slices.ContainsFunc(r.needs, pending)
		})
		if next < 0 {
			reportCycle(resources[slices.IndexFunc(resources, pending)], pending, c)
			return nil
		}
		done[resources[next]] = true
		out = append(out, resources[next])
	}
	return out
}

// reportCycle follows references between pending resources, which must revisit one of them.
func reportCycle(at *resource, pending func(*resource) bool, c *collector) {
	var walked []*resource
	for !slices.Contains(walked, at) {
		walked = append(walked, at)
		at = at.needs[slices.IndexFunc(at.needs, pending)]
	}
	var ids []string
	for _, r := range append(walked[slices.Index(walked, at):], at) {
		ids = append(ids, r.ID)
	}
	c.add(at.Path, "", "refers to itself in a cycle: %s", strings.Join(ids, " -> "))
}
