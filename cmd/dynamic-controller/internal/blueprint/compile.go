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
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
	"github.com/dynamic-controller/engine/internal/datakinds"
)

// Options describes the cluster. All fields are optional. Checks that depend on an unset field are skipped.
type Options struct {
	// CRD is the existing CustomResourceDefinition of the type, or nil if it is missing. If the Blueprint defines the type
	// itself, CRD affects only the schema of spec.type.status. See [Compiled.Definition].
	CRD *apiextensionsv1.CustomResourceDefinition
	// Version is the version in which the platform reads instances. Defaults to VersionOf(CRD).
	Version string
	// SchemaFor returns the schema of a kind, or nil if it is unknown.
	SchemaFor func(schema.GroupVersionKind) common.Schema
	// IsNamespaced reports whether a kind is namespaced, and whether the scope of the kind is known.
	IsNamespaced func(schema.GroupVersionKind) (namespaced, known bool)
	// Namespaces restricts instances and children to these namespaces. If it is empty, all namespaces are allowed.
	Namespaces []string
}

// Compiled is a Blueprint that can be served. It is immutable and safe for concurrent use.
type Compiled struct {
	definition    *apiextensionsv1.CustomResourceDefinition
	namespaced    bool
	resources     []*resource // sorted, each after the resources that it refers to
	report        report
	writtenStatus []string // the status fields that the platform writes
	// readSchema is the schema under which the API server reads instances, or nil if it is unknown. See CanBeRead.
	readSchema         *readSchema
	allowedNamespaces  []string
	namespaces         []string // Options.Namespaces
	serviceAccountName string
}

// Template describes a compiled template or reference.
type Template struct {
	ID         string
	Path       string // the path in problems, such as spec.resources[2].template
	Reference  bool   // whether the resource refers to existing objects instead of defining a child
	GVK        schema.GroupVersionKind
	Namespaced bool     // assumed if the scope of the kind is unknown
	Needs      []string // the ids of the resources that the template refers to
	Collection bool     // whether the resource is a collection, or a reference with a selector

	DeletionPolicy DeletionPolicy // the policy for the children
	Adopt          bool           // whether the instance can adopt existing objects

	OnImmutable OnImmutable // the policy for children that cannot be changed

	KeepExisting []KeptField // includes those of Generate
	Generate     []Generated
}

// resource is a compiled Template.
type resource struct {
	Template
	index int // the index in spec.resources
	// sensitive reports whether objects of the resource can contain data from a Secret. See markSensitive.
	sensitive bool
	// isList reports whether the resource is a reference with a selector. In expressions, its id is a list of objects.
	isList bool
	// computesNamespace reports whether the namespace is computed by an expression other than ownNamespace.
	computesNamespace bool

	body    node
	forEach []iterator // set for collections only
	include []*expressionAt
	ready   []*expressionAt
	needs   []*resource
	// requires lists the resources in needs that the resource cannot exist without. Others are read only by ?.
	requires []requirement

	// includeLater holds the includeWhen conditions that read other resources. Conditions that read only self are in
	// include. includeNeeds holds the resources that the conditions in includeLater read.
	includeLater []*expressionAt
	includeNeeds []*resource
	// decidedLater reports whether the decision to include the resource depends on other resources. See splitConditions.
	decidedLater bool
}

// OversizedAnnotation marks a cached Blueprint whose spec exceeds MaxSpecBytes. The cache does not store the templates
// and the schema of such a Blueprint, and Compile rejects it.
const OversizedAnnotation = "platform.example.com/oversized"

// UnknownFieldsAnnotation marks a Blueprint whose spec has fields that this version of the platform does not support.
// The API server stores such fields if a newer version has applied the Blueprint CustomResourceDefinition. The value
// describes the fields. Compile rejects such Blueprints because ignoring these fields could change their meaning.
const UnknownFieldsAnnotation = "platform.example.com/unknown-fields"

// Compile compiles a Blueprint, which must be valid against the Blueprint CustomResourceDefinition. A returned error
// has type Problems and lists the problems in the schema and in all templates.
func Compile(b *Blueprint, options Options) (*Compiled, error) {
	c := &collector{}
	if b.Annotations[OversizedAnnotation] != "" {
		c.add("spec", "", "has more than %d bytes", MaxSpecBytes)
		return nil, c.err()
	}
	if fields := b.Annotations[UnknownFieldsAnnotation]; fields != "" {
		c.add("spec", "", "%s; this replica runs an older version of the platform than the Blueprint requires", fields)
		return nil, c.err()
	}
	crd := define(b, c)
	if b.Spec.Type.CRD != "" {
		crd = options.CRD
	}
	out := &Compiled{
		definition: crd, namespaced: b.Spec.Type.Scope != apiextensionsv1.ClusterScoped,
		allowedNamespaces: b.Spec.AllowedNamespaces, serviceAccountName: b.Spec.ServiceAccountName,
		namespaces: options.Namespaces, writtenStatus: writtenStatusOf(b.Spec.Type),
	}
	if crd != nil {
		out.namespaced = crd.Spec.Scope != apiextensionsv1.ClusterScoped
	}
	if len(out.namespaces) > 0 && !out.namespaced {
		c.add(typePath, "", "must be namespaced, because %s", limited)
	}
	if len(b.Spec.Resources) > MaxResources {
		c.add("spec.resources", "", "has more than %d items", MaxResources)
		return nil, c.err()
	}
	parsing := &parsing{problems: c}
	out.report = parsing.report(b.Spec.Type)
	resources := make([]*resource, len(b.Spec.Resources))
	ids := map[string]*resource{}
	for i, r := range b.Spec.Resources {
		resources[i] = out.parse(i, r, b.Spec.Type, options, parsing)
		checkID(resources[i], ids, c)
	}
	if !checkExpressionLimits(parsing, c) {
		return nil, c.err()
	}
	for _, r := range resources {
		r.checkIterators(ids, c)
	}
	self, err := selfSchema(crd, options.Version, out.writtenStatus)
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
	checkIdentities(resources, parsing.found, c)
	for _, r := range resources {
		if !r.Reference {
			r.checkFields(schemas[r.GVK], c)
		}
	}
	checkKeys(resources, schemas, parsing.found, c)
	out.addStatus(b.Spec.Type, options, c)
	if out.resources = ordered(resources, c); len(c.problems) == 0 {
		splitConditions(out.resources)
		out.report.reads = readsOf(out.resources, parsing.found)
		markSensitive(out.resources, parsing.found, c)
	}
	if len(c.problems) > 0 {
		return nil, c.err()
	}
	if out.readSchema, err = readSchemaOf(crd, options.Version); err != nil {
		c.add(typePath, "", "%v", err)
		return nil, c.err()
	}
	return out, nil
}

// Definition returns the CustomResourceDefinition generated from the Blueprint, or Options.CRD if the Blueprint refers
// to an existing type. The result must not be modified.
//
// The schema of a field of spec.type.status is derived from its expressions, unless the author's schema declares the
// field. The derived schema can change when the schemas of other kinds become known or change. To avoid frequent
// changes, the schema of the field in Options.CRD is kept if it accepts all values of the derived schema.
func (c *Compiled) Definition() *apiextensionsv1.CustomResourceDefinition { return c.definition }

// ServiceAccountName returns spec.serviceAccountName.
func (c *Compiled) ServiceAccountName() string { return c.serviceAccountName }

// Templates returns the templates and references, sorted so that each one follows those that it refers to. Children
// must be deleted in the reverse order.
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

// Kinds returns the kinds of all templates, sorted.
func (c *Compiled) Kinds() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	for _, r := range c.resources {
		if !r.Reference {
			out = append(out, r.GVK)
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// parse parses a resource and checks everything except its expressions.
func (c *Compiled) parse(index int, r Resource, own Type, options Options, parsing *parsing) *resource {
	at := fmt.Sprintf("spec.resources[%d]", index)
	out := &resource{index: index, body: literal{}, Template: Template{
		ID: r.ID, Path: at + ".template", DeletionPolicy: cmp.Or(r.DeletionPolicy, Delete), Adopt: r.Adopt,
		OnImmutable: r.OnImmutable, Collection: len(r.ForEach) > 0, KeepExisting: keptBy(r), Generate: r.Generate,
	}}
	out.forEach = parsing.iterators(r.ForEach, at+".forEach", index)
	out.include = parsing.conditions(r.IncludeWhen, at+".includeWhen", index, includes)
	out.ready = parsing.conditions(r.ReadyWhen, at+".readyWhen", index, readies)
	problems := parsing.problems
	body := r.Template
	if r.ExternalRef != nil {
		body = r.ExternalRef.content()
		out.Reference, out.Path = true, at+".externalRef"
		if out.Collection {
			problems.add(at+".forEach", "", "must not be set with externalRef; use a selector to refer to several objects")
		}
		if selector := r.ExternalRef.Metadata.Selector; selector != nil {
			out.isList = true
			checkSelector(selector, out.Path+".metadata.selector", problems)
		}
	}
	size, depth, _ := measure(body)
	switch {
	case size > MaxTemplateBytes:
		problems.add(out.Path, "", "has more than %d bytes", MaxTemplateBytes)
	case depth > MaxTemplateDepth:
		problems.add(out.Path, "", "has more than %d levels", MaxTemplateDepth)
	default:
		c.checkObject(body, own, options, out, problems)
		out.body = parsing.parse(body, out.Path, index)
	}
	out.checkRecreation(at, problems)
	out.checkKept(r, at, problems)
	return out
}

// checkRecreation reports a resource with onImmutable: Recreate whose children must not be deleted.
func (r *resource) checkRecreation(at string, problems *collector) {
	if r.OnImmutable != Recreate {
		return
	}
	at += ".onImmutable"
	switch {
	case r.Reference:
		problems.add(at, "", "must not be set with externalRef, because existing objects are only read")
	case r.DeletionPolicy == Retain:
		problems.add(at, "", "must not be Recreate with deletionPolicy: Retain, because retained children are never deleted")
	case datakinds.Contains(r.GVK.GroupKind()):
		problems.add(at, "", "must not be Recreate, because deleting a %s deletes data", r.GVK.Kind)
	}
}

var validID = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]{0,62}$`)

// reservedIDs lists self, each and the reserved words of CEL.
var reservedIDs = strings.Fields("self each true false null in as break const continue else for function if import " +
	"let loop package namespace return var void while int uint double bool string bytes list map type dyn null_type " +
	"optional_type")

func checkID(r *resource, ids map[string]*resource, c *collector) {
	path := fmt.Sprintf("spec.resources[%d].id", r.index)
	switch {
	case !validID.MatchString(r.ID):
		c.add(path, "", "%q is not a valid id; use a letter followed by at most 62 letters, digits or underscores",
			Cut(r.ID, maxQuoted))
	case slices.Contains(reservedIDs, r.ID):
		c.add(path, "", "%q is reserved; use a different id%s", r.ID, quoteHint(r.ID))
	case ids[r.ID] != nil:
		c.add(path, "", "%q is already the id of spec.resources[%d]", r.ID, ids[r.ID].index)
	default:
		ids[r.ID] = r
	}
}

// readAs maps the names of booleans to the words that YAML 1.1, and thus kubectl, reads as this boolean unless they are
// quoted.
var readAs = map[string][]string{"true": {"y", "yes", "on"}, "false": {"n", "no", "off"}}

// quoteHint returns a hint to append to a message about a name that can result from an unquoted word.
func quoteHint(name string) string {
	if words := readAs[name]; words != nil {
		return fmt.Sprintf(". YAML reads %s and %s as %s unless they are in quotes",
			strings.Join(words[:len(words)-1], ", "), words[len(words)-1], name)
	}
	return ""
}

// checkExpressionLimits reports whether the number and the total size of the expressions are within the limits.
func checkExpressionLimits(p *parsing, c *collector) bool {
	switch {
	case len(p.found) > MaxExpressions:
		c.add("spec", "", "has %d expressions; the maximum is %d", len(p.found), MaxExpressions)
	case p.bytes > MaxExpressionBytes:
		c.add("spec", "", "has %d bytes of expressions; the maximum is %d", p.bytes, MaxExpressionBytes)
	default:
		return true
	}
	return false
}

// schemasOf returns the schemas of all kinds in the Blueprint. It looks up each schema only once.
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
		v := expression.Variable{Name: r.ID, List: r.Collection || r.isList}
		// Schemas are large: the schema of Deployments has more than a thousand fields. Declare a schema only if an
		// expression can read an object of the resource.
		if slices.ContainsFunc(all, func(f *found) bool {
			return strings.Contains(f.text, r.ID) || r.Collection && f.owner == r.index && f.use == readies
		}) {
			v.Schema = schemas[r.GVK]
		}
		variables = append(variables, v)
	}
	return expression.NewEnv(variables...)
}

func compileAll(env *expression.Env, all []*found, resources []*resource, ids map[string]*resource, c *collector) {
	// Equal expressions with the same environment share a program.
	type key struct {
		env  *expression.Env
		text string
	}
	programs := map[key]*expression.Program{}
	scopes := newScopes(env)
	for _, f := range all {
		if c.full() {
			return
		}
		var owner *resource // nil for expressions of spec.type
		if f.owner != ofType {
			owner = resources[f.owner]
		}
		scope, err := scopes.of(f, owner)
		program := programs[key{scope, f.text}]
		if err == nil && program == nil {
			program, err = scope.Compile(f.text)
		}
		if err != nil {
			c.add(f.path, f.text, "%s", f.explainCompile(err))
			continue
		}
		programs[key{scope, f.text}] = program
		f.compiled.Program = program
		f.checkUse(c)
		if owner != nil { // the status can read all resources and does not wait for any
			f.checkReferences(owner, ids, c)
		}
	}
}

var (
	undeclared  = regexp.MustCompile(`^undeclared reference to '([^']*)'`)
	parserError = regexp.MustCompile("no viable alternative|(mismatched|extraneous) input|token recognition|missing '")
	// mergeAsFunction matches the error for merge(a, b), which lists the types in parentheses. The error for a.merge(b)
	// starts with the type of a instead.
	mergeAsFunction = regexp.MustCompile(`^found no matching overload for 'merge' applied to '\(`)
	position        = regexp.MustCompile(` ?\(line \d+, column \d+\)$`)
)

// instanceInKro is the name of the variable that refers to the instance in kro's expressions.
const instanceInKro = "schema"

// explainCompile rewrites a compile error for users. It suggests names and leaves out parser output.
func (f *found) explainCompile(err error) string {
	reason := err.Error()
	where := position.FindString(reason)
	reason = strings.TrimSuffix(reason, where)
	var unknown *expression.UnknownFieldError
	m := undeclared.FindStringSubmatch(reason)
	switch {
	case m != nil && strings.Contains(f.text, m[1]+"("):
		reason = fmt.Sprintf("unknown function %q", m[1])
	case m != nil && m[1] == instanceInKro:
		return fmt.Sprintf("unknown name %q%s; did you mean self?", m[1], where)
	case m != nil:
		reason = fmt.Sprintf("unknown name %q; use self or the id of a resource", m[1])
	case mergeAsFunction.MatchString(reason):
		return reason + where + "; write a.merge(b)"
	case errors.As(err, &unknown):
		return fmt.Sprintf("unknown field %q%s%s", unknown.Field, where, insteadOf(unknown))
	case parserError.MatchString(reason):
		reason = "syntax error"
	}
	return reason + where
}

// maxSuggestedFields is the maximum number of fields that an error lists if no field has a similar name. If the object
// has more fields, the error lists none of them.
const maxSuggestedFields = 8

func insteadOf(unknown *expression.UnknownFieldError) string {
	for _, known := range unknown.Known {
		if slices.Contains(readAs[known], strings.ToLower(unknown.Field)) {
			return fmt.Sprintf("; the schema has a field %q; YAML reads the unquoted key %s as that name, so put "+
				"the key in quotes", known, unknown.Field)
		}
	}
	if suggestion := suggest(unknown.Field, unknown.Known); suggestion != "" {
		return suggestion
	}
	if len(unknown.Known) == 0 || len(unknown.Known) > maxSuggestedFields {
		return ""
	}
	return "; the fields are " + strings.Join(unknown.Known, ", ")
}

func (f *found) checkUse(c *collector) {
	p := f.compiled
	switch f.use {
	case withinText:
		if !p.IsPrimitive() {
			c.add(f.path, f.text, "text can contain only strings, numbers and booleans, not %s", describeType(p.Type()))
		}
	case aString:
		if !p.IsString() {
			c.add(f.path, f.text, "must be a string, not %s", describeType(p.Type()))
		}
	case aText:
		if !p.IsText() {
			c.add(f.path, f.text, "must be a string, not %s; convert it with string()", describeType(p.Type()))
		}
	case includes, readies, reports:
		if !p.IsBool() {
			c.add(f.path, f.text, "must be a boolean, not %s", describeType(p.Type()))
		}
	case iterates:
		f.checkList(c)
	}
}

func (f *found) checkReferences(owner *resource, ids map[string]*resource, c *collector) {
	for _, name := range f.compiled.References() {
		switch {
		case name == "self", owner.iterator(name) != nil:
		case f.use == readies:
			if object := owner.readyVariable(); name != object {
				c.add(f.path, f.text, "must not refer to %s; readyWhen can read only %s and self", name, object)
			}
		case name == owner.ID:
			c.add(f.path, f.text, "must not refer to the resource itself, which does not exist yet")
		default:
			owner.needs = withResource(owner.needs, ids[name])
			if f.compiled.Requires(name) {
				owner.require(ids[name], f.path)
			}
			if f.use == includes {
				owner.includeNeeds = withResource(owner.includeNeeds, ids[name])
			}
		}
	}
}

func withResource(all []*resource, r *resource) []*resource {
	if slices.Contains(all, r) {
		return all
	}
	return append(all, r)
}

// ordered sorts resources so that each one follows those that it refers to. Otherwise, it keeps the order of the spec.
// It reports a cycle if it finds one.
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

// reportCycle follows references between pending resources until it reaches a resource for the second time.
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
