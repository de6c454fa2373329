package blueprint_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// collection returns a Blueprint with a collection of ConfigMaps over these lists, and with other resources.
func collection(forEach, metadata, data, others string) string {
	return ofWebsites(fmt.Sprintf(`
    - {id: pages, forEach: [%s], template: {apiVersion: v1, kind: ConfigMap, metadata: {%s}, data: {k: %s}}}%s`,
		forEach, metadata, data, others))
}

const (
	tags    = `{tag: "${self.spec.tags}"}`
	tagName = `name: "${tag}"`
)

func TestCompile_collections(t *testing.T) {
	const first = "spec.resources[0]."
	for reason, c := range map[string]struct {
		text    string
		options blueprint.Options
		want    []string
	}{
		"a list in the instance": {text: collection(tags, tagName, `"${tag + 'x'}"`, "")},
		"a condition of each object and self": {text: strings.Replace(collection(tags, tagName, "x", ""), "forEach",
			`readyWhen: ["each.data.k == self.spec.name"], forEach`, 1)},
		"the objects of another collection": {text: collection(tags, tagName, "x", `
    - {id: more, forEach: [{page: "${pages}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${page.metadata.name}-more"}, data: {all: "${pages.map(p, p.metadata.name).join(', ')}"}}}`)},
		"variables with the same name and other types": {text: collection(tags, tagName, `"${tag.size()}"`, `
    - {id: more, forEach: [{tag: "${lists.range(self.spec.size)}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "a-${tag}"}, data: {k: "${string(tag + 1)}"}}}`)},
		"a variable used in the namespace": {
			text: allowingNamespaces(collection(tags, `name: a, namespace: "${tag}"`, "x", ""), "*"),
		},
		"items have the type that the schema declares": {
			text: collection(tags, tagName, `"${tag.nope}"`, ""),
			want: []string{first + "template.data.k: ${tag.nope}: type 'string' does not support field selection (line 1, " +
				"column 4)"},
		},
		"the id refers to a list": {
			text: collection(tags, tagName, "x", `
    - {id: crates, forEach: [{num: "${[1]}"}], readyWhen: [each.spec.colour == 'red'],
        template: {apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: "a${num}"}}}
    - {id: last, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: last},
        data: {a: "${crates.spec}", b: "${crates[0].spec.colour}", c: "${crates.map(x, x.spec.colour)}"}}}`),
			options: describing(t, definitionOf(t, crates)),
			want: []string{
				`spec.resources[1].readyWhen[0]: ${each.spec.colour == 'red'}: unknown field "colour" (line 1, column 10); ` +
					`did you mean color?`,
				"spec.resources[2].template.data.a: ${crates.spec}: type 'list(type of crates)' does not support field " +
					"selection (line 1, column 7)",
				`spec.resources[2].template.data.b: ${crates[0].spec.colour}: unknown field "colour" (line 1, column 15); ` +
					`did you mean color?`,
				"spec.resources[2].template.data.c: ${crates.map(x, x.spec.colour)}: undefined field 'colour' (line 1, " +
					"column 21)",
			},
		},
		"not a list": {
			text: collection(`{a: "${self.spec.name}"}, {b: "${self.spec.labels}"}, {c: "${self.spec.?tags}"}`,
				`name: "${a}${b}${c}"`, "x", ""),
			want: []string{
				first + "forEach[0].a: ${self.spec.name}: must be a list, not a string",
				first + "forEach[1].b: ${self.spec.labels}: must be a list, not map(string, string); iterate over its keys with " +
					".map(key, key).sort()",
				first + "forEach[2].c: ${self.spec.?tags}: must be a list, not optional_type(list(string)); add .orValue([])",
			},
		},
		"invalid variable names": {
			text: collection(`{a-b: "${[1]}"}, {self: "${[1]}"}, {each: "${[1]}"}, {pages: "${[1]}"}, {a: "${[1]}"}, `+
				`{a: "${[2]}"}, {}, {b: "${[1]}", c: "${[1]}"}`, `name: "a${a}"`, "x", ""),
			want: []string{
				first + "forEach[6]: must have exactly one entry: a variable name and a list expression",
				first + "forEach[7]: must have exactly one entry: a variable name and a list expression",
				first + `forEach[0].a-b: "a-b" is not a valid name; use a letter followed by at most 62 letters, digits or ` +
					`underscores`,
				first + `forEach[1].self: "self" is reserved; use a different name`,
				first + `forEach[2].each: "each" is reserved; use a different name`,
				first + `forEach[3].pages: "pages" is the id of spec.resources[0]; use a different name`,
				first + `forEach[5].a: "a" is already a variable of this resource; use a different name`,
			},
		},
		"too many lists": {
			text: collection(`{a: "${[1]}"}, {b: "${[1]}"}, {c: "${[1]}"}, {d: "${[1]}"}, {e: "${[1]}"}, {f: "${[1]}"}, `+
				`{g: "${[1]}"}, {h: "${[1]}"}, {i: "${[1]}"}, {j: "${[1]}"}, {k: "${[1]}"}`, `name: "${a}-${j}"`, "x", ""),
			want: []string{first + "forEach: has more than 10 items"},
		},
		"each used as an id": {
			text: ofWebsites("\n    - {id: each, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}"),
			want: []string{first + `id: "each" is reserved; use a different id`},
		},
		"a variable outside its template": {
			text: strings.Replace(collection(tags+`, {num: "${[tag]}"}`, `name: "${tag}${num}"`, "x", `
    - {id: other, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${tag}"}}}`),
				"forEach", "includeWhen: [tag == 'a'], readyWhen: [tag == 'a'], forEach", 1),
			want: []string{
				first + `forEach[1].num: ${[tag]}: unknown name "tag"; use self or the id of a resource (line 1, column 2)`,
				first + `includeWhen[0]: ${tag == 'a'}: unknown name "tag"; use self or the id of a resource (line 1, column 1)`,
				first + `readyWhen[0]: ${tag == 'a'}: unknown name "tag"; use self or the id of a resource (line 1, column 1)`,
				`spec.resources[1].template.metadata.name: ${tag}: unknown name "tag"; use self or the id of a resource ` +
					`(line 1, column 1)`,
			},
		},
		"readyWhen that reads the whole collection": {
			text: strings.Replace(collection(tags, tagName, "x", ""), "forEach", "readyWhen: [pages.size() > 0], forEach", 1),
			want: []string{
				first + "readyWhen[0]: ${pages.size() > 0}: must not refer to pages; readyWhen can read only each and self",
			},
		},
		"a name that does not use all variables": {
			text: collection(tags+`, {num: "${[1, 2]}"}`, `name: "${tag}-a"`, `"${string(num)}"`, ""),
			want: []string{
				first + "template.metadata.name: must read num, so that each object of the collection has a unique name",
			},
		},
		"a list expression that reads its own collection": {
			text: collection(`{tag: "${pages}"}`, `name: "${tag.metadata.name}"`, "x", ""),
			want: []string{
				first + "forEach[0].tag: ${pages}: must not refer to the resource itself, which does not exist yet",
			},
		},
		"list expressions in a cycle": {
			text: collection(`{tag: "${more}"}`, `name: "${tag.metadata.name}"`, "x", `
    - {id: more, forEach: [{page: "${pages}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${page.metadata.name}-more"}}}`),
			want: []string{first + "template: refers to itself in a cycle: pages -> more -> pages"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			got := problemsOf(t, c.text, c.options)
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestTemplates_reportCollections(t *testing.T) {
	compiled := compile(t, collection(tags, tagName, "x", `
    - {id: more, forEach: [{page: "${pages}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${page.metadata.name}-more"}}}
    - {id: other, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: other}}}`), blueprint.Options{})
	got := ""
	for _, x := range compiled.Templates() {
		got += fmt.Sprint(x.ID, " ", x.Collection, " ", x.Needs, " ")
	}
	if want := "pages true [] more true [pages] other false [] "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// stepOf summarizes one step.
func stepOf(s blueprint.Step) string {
	var rendered []string
	for _, r := range s.Rendered {
		text := r.Key
		if data, is := r.Object.Object["data"].(map[string]any); is {
			text += fmt.Sprint("=", data["k"])
		}
		rendered = append(rendered, text)
	}
	got := fmt.Sprint("rendered ", rendered, " waiting ", s.Waiting, " unready ", s.Unready)
	if len(s.Problems) > 0 {
		got += " problems " + s.Problems.Error()
	}
	if s.Ready {
		got += " ready"
	}
	return got
}

func TestStep_collections(t *testing.T) {
	const summary = `
    - {id: summary, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: summary},
        data: {k: "${pages.map(p, p.metadata.name).join(' ')}"}}}`
	claims := ofWebsites(`
    - {id: claims, forEach: [` + tags + `], template: {apiVersion: v1, kind: PersistentVolumeClaim,
        metadata: {` + tagName + `}}}
    - {id: pod, template: {apiVersion: v1, kind: Pod, metadata: {name: "${claims[1].metadata.name}"}}}`)
	ready := strings.Replace(collection(tags, tagName, "x", summary), "forEach",
		"readyWhen: [each.data.up == 'ok'], forEach", 1)
	var ranges []string
	names := ""
	for i := range 10 {
		ranges, names = append(ranges, fmt.Sprintf(`{n%d: "${lists.range(9999)}"}`, i)), names+fmt.Sprintf("${n%d}", i)
	}
	up, down := "{metadata: {name: %s}, data: {up: ok}}", "{metadata: {name: %s}, data: {up: no-}}"
	for reason, c := range map[string]struct {
		text, self string
		observed   map[string]string
		want       string
	}{
		"one object for each item": {
			text: collection(tags, tagName, `"${tag + self.spec.name}"`, ""),
			want: "rendered [pages/shop/a=aFlowers pages/shop/b=bFlowers] waiting [] unready [pages: 2 of 2 are not ready: " +
				"shop/a: does not exist yet; shop/b: does not exist yet]",
		},
		"one object for each combination, in the order of the lists": {
			text: collection(tags+`, {num: "${[1, 2, 3]}"}`, `name: "${tag}${num}"`, `"${string(num)}"`, ""),
			want: "rendered [pages/shop/a1=1 pages/shop/a2=2 pages/shop/a3=3 pages/shop/b1=1 pages/shop/b2=2 pages/shop/b3=3] " +
				"waiting [] unready [pages: 6 of 6 are not ready: shop/a1: does not exist yet; shop/a2: does not exist yet; " +
				"shop/a3: does not exist yet; and 3 more]",
		},
		"items that are objects": {
			text: collection(`{m: "${[{'name': 'x', 'at': {'k': 'v'}}]}"}`, `name: "${m.name}"`, `"${m.at.k}"`, ""),
			want: "rendered [pages/shop/x=v] waiting [] unready [pages: 1 of 1 are not ready: shop/x: does not exist yet]",
		},
		"items keep their types": {
			text: collection(`{m: "${[timestamp('2026-01-02T03:04:05Z')]}"}`, `name: "y${m.getFullYear()}"`, `"${m}"`, ""),
			want: "rendered [pages/shop/y2026=2026-01-02T03:04:05Z] waiting [] unready [pages: 1 of 1 are not ready: " +
				"shop/y2026: does not exist yet]",
		},
		"an empty list": {
			text: collection(tags+`, {num: "${[1, 2].filter(x, x > 2)}"}`, `name: "${tag}${num}"`, "x", summary),
			observed: map[string]string{
				"summary": "{metadata: {name: summary}}",
			},
			want: "rendered [summary=] waiting [] unready [] ready",
		},
		"an empty list next to one that is too long": {
			text: collection(`{num: "${lists.range(5000)}"}, {m: "${[1].filter(x, x > 2)}"}`, `name: "${num}${m}"`, "x", ""),
			want: "rendered [] waiting [] unready [] ready",
		},
		"other resources wait until all objects are ready": {
			text: ready,
			observed: map[string]string{
				"pages/shop/b": fmt.Sprintf(down, "b"), "pages/shop/a": fmt.Sprintf(up, "a"), "pages/shop/c": fmt.Sprintf(up, "c"),
			},
			want: "rendered [pages/shop/a=x pages/shop/b=x] waiting [summary: waiting for pages] unready [pages: 1 of 2 are " +
				"not ready: shop/b: waiting for readyWhen \"each.data.up == 'ok'\"]",
		},
		"the id refers to the list of objects, in order": {
			text: ready,
			observed: map[string]string{
				"pages/shop/b": fmt.Sprintf(up, "b"), "pages/shop/a": fmt.Sprintf(up, "a"), "pages/shop/c": fmt.Sprintf(up, "c"),
				"summary": "{}",
			},
			want: "rendered [pages/shop/a=x pages/shop/b=x summary=a b] waiting [] unready [] ready",
		},
		"a list of a resource that is not ready": {
			text: collection(`{num: "${db.data.names}"}`, `name: "${num}"`, "x", `
    - {id: db, readyWhen: [has(db.data)], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: db}}}`),
			observed: map[string]string{"db": "{}"},
			want:     "rendered [db] waiting [pages: waiting for db] unready [db: waiting for readyWhen \"has(db.data)\"]",
		},
		"a list that is missing from another resource": {
			text: collection(`{num: "${db.status.names}"}`, `name: "${num}"`, "x", `
    - {id: db, readyWhen: ["true"], template: {apiVersion: apps/v1, kind: Deployment, metadata: {name: db}}}`),
			observed: map[string]string{"db": "{}"},
			want: "rendered [db] waiting [pages: waiting for db.status, which spec.resources[0].forEach[0].num reads] " +
				"unready []",
		},
		"an incomplete item in another resource": {
			text: collection(`{num: "${db.status.nodes}"}`, `name: "${num.name}"`, `"${num.ip}"`, `
    - {id: db, readyWhen: ["true"], template: {apiVersion: apps/v1, kind: Deployment, metadata: {name: db}}}`),
			observed: map[string]string{"db": "{status: {nodes: [{name: a, ip: 1.1.1.1}, {name: b}]}}"},
			want: "rendered [db] waiting [pages: waiting for num.ip, which spec.resources[0].template.data.k reads] " +
				"unready []",
		},
		"a list that is missing from the instance": {
			text: collection(`{num: "${self.spec.free.names}"}`, `name: "${num}"`, "x", ""),
			want: "rendered [] waiting [] unready [] problems spec.resources[0].forEach[0].num: ${self.spec.free.names}: " +
				"self.spec.free.names does not exist; test it with has(), or read it with ?",
		},
		"a field that is missing from an item": {
			text: collection(`{num: "${[{'name': 'a', 'x': 'x'}, {'name': 'b'}]}"}`, `name: "${num.name}"`, `"${num.x}"`, ""),
			want: "rendered [] waiting [] unready [] problems spec.resources[0].template.data.k: ${num.x}: with num[1]: num.x " +
				"does not exist; test it with has(), or read it with ?",
		},
		"a value that is not a list": {
			text: collection(`{num: "${self.spec.free.map}"}`, `name: "${num}"`, "x", ""),
			self: strings.Replace(flowers, "none: null", "map: {a: b}", 1),
			want: "rendered [] waiting [] unready [] problems spec.resources[0].forEach[0].num: ${self.spec.free.map}: is of " +
				"type map, not list",
		},
		"a failed item does not affect other resources": {
			text: collection(`{num: "${[1, 0]}"}`, `name: "n${num}"`, `"${string(6 / num)}"`, summary+`
    - {id: other, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: other}}}`),
			observed: map[string]string{"other": "{}"},
			want: "rendered [other] waiting [summary: waiting for pages, which has an error] unready [] problems " +
				"spec.resources[0].template.data.k: ${string(6 / num)}: with num[1]: division by zero",
		},
		"the same object twice": {
			text: collection(tags+`, {num: "${[1, 2, 1]}"}`, `name: "${tag}${num}"`, "x", ""),
			want: "rendered [] waiting [] unready [] problems spec.resources[0].template.metadata.name: with tag[0], num[2]: " +
				"ConfigMap a1 is already rendered by pages with tag[0], num[0]; use a different name",
		},
		"an object of another resource": {
			text: collection(tags, tagName, "x", `
    - {id: other, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`),
			want: "rendered [pages/shop/a=x pages/shop/b=x] waiting [] unready [pages: 2 of 2 are not ready: shop/a: does not " +
				"exist yet; shop/b: does not exist yet] problems spec.resources[1].template.metadata.name: ConfigMap b is " +
				"already rendered by pages with tag[1]; use a different name",
		},
		"claims that wait for their first Pod": {
			text: claims,
			observed: map[string]string{
				"claims/shop/a": "{metadata: {name: a}, status: {phase: Pending}}",
				"claims/shop/b": "{metadata: {name: b}, status: {phase: Bound}}",
			},
			want: "rendered [claims/shop/a claims/shop/b pod] waiting [] unready [claims: 1 of 2 are not ready: shop/a: " +
				"waiting for the claim to be bound pod: does not exist yet]",
		},
		"a claim that does not exist yet": {
			text:     claims,
			observed: map[string]string{"claims/shop/a": "{metadata: {name: a}, status: {phase: Bound}}"},
			want: "rendered [claims/shop/a claims/shop/b] waiting [pod: waiting for claims] unready [claims: 1 of 2 are not " +
				"ready: shop/b: does not exist yet]",
		},
		"too many combinations": {
			text: collection(`{a: "${lists.range(40)}"}, {b: "${lists.range(26)}"}`, `name: "${a}-${b}"`, "x", ""),
			want: "rendered [] waiting [] unready [] problems spec.resources[0].forEach: 40 x 26 items result in more " +
				"than 1000 objects",
		},
		"far too many combinations": {
			text: collection(strings.Join(ranges, ", "), `name: "`+names+`"`, "x", ""),
			want: "rendered [] waiting [] unready [] problems spec.resources[0].forEach: " +
				strings.Repeat("9999 x ", 9) + "9999 items result in more than 1000 objects",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			self := flowers
			if c.self != "" {
				self = c.self
			}
			if got := stepOf(step(t, compile(t, c.text, blueprint.Options{}), self, c.observed)); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// The number of objects and the number of bytes are limited for all collections together.
func TestStep_limitsCollections(t *testing.T) {
	of := func(count, items int, data string) string {
		resources := ""
		for i := range count {
			resources += fmt.Sprintf(`
    - {id: r%d, forEach: [{num: "${lists.range(%d)}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "r%[1]d-${num}"}, data: {k: "%[3]s"}}}`, i, items, data)
		}
		return ofWebsites(resources)
	}
	for reason, c := range map[string]struct {
		text     string
		rendered int
		want     string
	}{
		"the maximum number of objects in total": {of(5, 1000, ""), 5000, ""},
		"too many objects in total": {
			of(6, 834, ""), 5 * 834, "spec.resources[5].forEach: the collections have more than 5000 objects in total",
		},
		"too many bytes in total": {
			of(2, 1000, strings.Repeat("x", 3000)), 1000, "all children together exceed 4194304 bytes",
		},
		"a costly expression for each object": {
			of(1, 1000, "${string(lists.range(9000).map(i, i).size())}"), 0,
			"the total cost of the instance's expressions exceeds",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			s := step(t, compile(t, c.text, blueprint.Options{}), flowers, nil)
			if len(s.Rendered) != c.rendered || !strings.Contains(s.Problems.Error(), c.want) ||
				(len(s.Problems) == 0) != (c.want == "") {
				t.Errorf("rendered %d, problems %v", len(s.Rendered), s.Problems)
			}
		})
	}
}

func TestStep_hidesSecretDataInCollections(t *testing.T) {
	const observed = `{apiVersion: v1, kind: Secret, metadata: {name: %s, uid: u1}, data: {password: hunter2}}`
	secrets := func(readyWhen, others string) string {
		return ofWebsites(`
    - {id: dbs, forEach: [{tag: "${self.spec.tags}"}], readyWhen: [` + readyWhen + `],
        template: {apiVersion: v1, kind: Secret, metadata: {name: "${tag}"}}}` + others)
	}
	for reason, c := range map[string]struct{ readyWhen, resources, refused, want string }{
		"an item": {
			resources: `
    - {id: maps, forEach: [{db: "${dbs}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${db.metadata.name}"}, data: {k: "${int(db.data.password)}"}}}`,
			want: "${int(db.data.password)}: with db[0]: the reason is hidden",
		},
		"the whole collection": {
			resources: `
    - {id: map1, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: map},
        data: {k: "${dbs.map(d, int(d.data.password))}"}}}`,
			want: "the reason is hidden",
		},
		"a condition of each object": {readyWhen: "int(each.data.password) > 1", want: "the reason is hidden"},
		"a list of values": {
			resources: `
    - {id: maps, forEach: [{v: "${dbs.map(d, d.data.password)}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${v}"}}}`,
			refused: "${v}: must not be derived from a Secret's data",
		},
		"a list of values that look like objects": {
			resources: `
    - {id: maps, forEach: [{v: "${dbs.map(d, {'metadata': {'name': d.data.password}})}"}],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${v.metadata.name}"}}}`,
			refused: "${v.metadata.name}: must not be derived from a Secret's data",
		},
		"the number of items": {
			resources: `
    - {id: maps, forEach: [{v: "${lists.range(int(dbs[0].data.password))}"}], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "${v}-x"}}}`,
			refused: "${v}: must not be derived from a Secret's data",
		},
		"names only": {
			resources: `
    - {id: maps, forEach: [{db: "${dbs}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${db.metadata.name}-${dbs[0].metadata.uid}"}, data: {k: "${db.kind}"}}}`,
		},
	} {
		t.Run(reason, func(t *testing.T) {
			compiled, err := blueprint.Compile(read(secrets(c.readyWhen, c.resources)), blueprint.Options{})
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("problems %v, want %s", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if compiled.IsSensitive("maps") && c.want == "" {
				t.Error("a resource that reads only names is sensitive")
			}
			s := step(t, compiled, flowers, map[string]string{
				"dbs/shop/a": fmt.Sprintf(observed, "a"), "dbs/shop/b": fmt.Sprintf(observed, "b"),
			})
			got := fmt.Sprint(s.Problems, s.Waiting, s.Unready)
			if !strings.Contains(got, c.want) || strings.Contains(got, "hunter2") {
				t.Errorf("got %s", got)
			}
		})
	}
}

// BenchmarkStep_collection measures a step in which all objects of a collection exist.
func BenchmarkStep_collection(b *testing.B) {
	for _, items := range []int{200, 800} {
		b.Run(fmt.Sprint(items), func(b *testing.B) {
			compiled := compile(b, ofWebsites(fmt.Sprintf(`
    - {id: pages, forEach: [{num: "${lists.range(%d)}"}], readyWhen: ["each.data.up == 'ok'"],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "p-${num}"}, data: {k: "${self.spec.name}"}}}
    - {id: last, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: last},
        data: {k: "${pages.map(p, p.metadata.name).join(', ')}"}}}`, items)), blueprint.Options{})
			observed := map[string]*unstructured.Unstructured{"last": object("{}")}
			for n := range items {
				name := fmt.Sprint("p-", n)
				key := blueprint.ItemKey("pages", "shop", name)
				observed[key] = object("{metadata: {name: " + name + "}, data: {up: ok}}")
			}
			instance := compiled.Instance(object(flowers))
			b.ReportAllocs()
			for b.Loop() {
				if s, err := instance.Step(b.Context(), observed); err != nil || !s.Ready {
					b.Fatalf("%v, %v, %v", s.Problems, s.Unready, err)
				}
			}
		})
	}
}
