package decide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/children/internal/compare"
	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
	"github.com/dynamic-controller/engine/internal/keptfields"
)

// Limits for the fields of a child that are remembered as contested.
const maxContested, maxContestedText = 20, 256

// contestedPeriod is how long a field counts as contested after a change of another client.
const contestedPeriod = 10 * time.Minute

// unknownManager is the manager of fields that were handed over to a manager whose name is not known.
const unknownManager = "unknown"

// contested is a field that another client has changed, although the child has it.
type contested struct {
	path  fieldpath.Path
	value any             // that the other client has set last: a string, number or boolean
	owner ownership.Entry // of the other client; its manager can be unknown
	times int             // how often it has changed the field lately
	last  time.Time       // when a change was noted last
	open  bool            // whether the last change has not been corrected yet
}

// isContested reports whether the field was changed so often, and so recently, that the other client will go on.
func (f *contested) isContested(now time.Time) bool {
	return f.times > 1 && now.Sub(f.last) < contestedPeriod
}

// note remembers which fields of a child another client has changed, before they are corrected.
func (f *fights) note(config, current *unstructured.Unstructured, manager string, now time.Time) {
	var owned fieldpath.Set
	if entries, err := ownership.Of(current); err == nil {
		applied, _ := entries.AppliedBy(manager)
		owned = *applied
	}
	for _, path := range compare.Differences(nil, config.Object, current.Object, maxContested) {
		// A field that this Reconciler still owns is stored differently: nobody else has changed it.
		if last := path[len(path)-1].FieldName; owned.Has(path) || last != nil && strings.HasPrefix(*last, manager+"/") {
			continue
		}
		value, found := ownership.Lookup(current.Object, path)
		text, isText := value.(string)
		switch value.(type) {
		case map[string]any, []any, nil:
			found = false
		}
		name := path.String()
		if !found || isText && len(text) > maxContestedText || f.contested[name] == nil && len(f.contested) >= maxContested {
			continue
		}
		if f.contested == nil {
			f.contested = map[string]*contested{}
		}
		if f.contested[name] == nil {
			f.contested[name] = &contested{path: path}
		}
		field := f.contested[name]
		if now.Sub(field.last) > contestedPeriod {
			field.times = 0
		}
		if !field.open {
			field.times++
		}
		field.value, field.owner = value, compare.LastOwnerOf(current, path, manager)
		field.open, field.last = true, now
	}
}

// correctedAll notes that the changes of other clients have been corrected.
func (f *fights) correctedAll() {
	for _, field := range f.contested {
		field.open = false
	}
}

// handOver gives the contested fields that leave the child to their other managers, with the values that those have
// set. Without it, the apply would remove the fields, because the corrections have made this Reconciler their only
// owner: the replicas of a Deployment would become 1, although an autoscaler has set 16.
func (d *childDecision) handOver(current *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if keptfields.IsProtective(d.GroupKind) {
		return current, nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.known.fights.contested)) {
		field := d.known.fights.contested[name]
		if _, stays := ownership.Lookup(d.config.Object, field.path); stays || !field.isContested(d.now) {
			continue
		}
		entries, err := ownership.Of(current)
		if err != nil {
			return current, nil //nolint:nilerr // an apply does not need them
		}
		now, err := d.giveTo(current, entries, field)
		if IsRejection(err) { // the other value is no longer possible, so the field leaves like any other
			delete(d.known.fights.contested, name)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("hand over %s: %w", compare.FieldOf(d.visible(field.path)), err)
		}
		current = now
		delete(d.known.fights.contested, name)
	}
	return current, nil
}

// giveTo makes the other manager an owner of a contested field, unless the field has another owner already.
func (d *childDecision) giveTo(
	current *unstructured.Unstructured, entries ownership.Entries, field *contested,
) (*unstructured.Unstructured, error) {
	owned, _ := entries.AppliedBy(d.manager())
	value, _ := ownership.Lookup(current.Object, field.path)
	const reason = "the field leaves the child, and another client sets it again and again"
	switch isSame := applied.Covers(field.value, value); {
	case !owned.Has(field.path), isSame && len(entries.OwnersOf(field.path)) > 1:
		return current, nil // the field stays
	case isSame:
		fields, err := entries.Share(field.owner, current.GetAPIVersion(), field.path).ManagedFields()
		if err != nil {
			return nil, err
		}
		return d.patch(SetManagedFields, reason, current, map[string]any{"managedFields": fields})
	}
	change := map[string]any{}
	ownership.Set(change, field.path, field.value)
	// The API server makes the manager of a request the owner of what the request changes.
	return d.write(current, Operation{
		Kind: HandOver, Reason: reason, Patch: change, Manager: cmp.Or(field.owner.Manager, unknownManager),
		Field: compare.FieldOf(d.visible(field.path)),
	})
}
