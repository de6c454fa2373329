package decide

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// Case is a decision about a desired child, with everything that it was made from, and all operations with their
// answers. It can be encoded as JSON, and replayed. The values and annotations of Secrets are replaced by hashes with a
// key that is not stored: within a Case, equal values have equal hashes. Keys and labels are not replaced.
type Case struct {
	Names     Names                      `json:"names"`
	Parent    *unstructured.Unstructured `json:"parent"` // the metadata that decisions read
	Writer    string                     `json:"writer,omitempty"`
	Buckets   bool                       `json:"buckets,omitempty"`
	Child     caseChild                  `json:"child"`
	Facts     caseFacts                  `json:"facts"`
	Seen      caseSeen                   `json:"seen"`
	Known     caseKnown                  `json:"known"`
	At        time.Time                  `json:"at"`
	Exchanges []caseExchange             `json:"exchanges"`
	Outcome   Outcome                    `json:"outcome"`
	Err       string                     `json:"err,omitempty"` // for readers; texts can differ between versions
}

type caseChild struct {
	ID        string                      `json:"id"`
	GroupKind schema.GroupKind            `json:"groupKind"`
	Resource  schema.GroupVersionResource `json:"resource"`
	Template  *unstructured.Unstructured  `json:"template"`
	Kept      []casePath                  `json:"kept,omitempty"`
	Hash      string                      `json:"hash"`
	Marked    bool                        `json:"marked,omitempty"`
	Retain    bool                        `json:"retain,omitempty"`
	Adopt     bool                        `json:"adopt,omitempty"`
	Recreate  bool                        `json:"recreate,omitempty"`
}

type caseFacts struct {
	ParentExists bool       `json:"parentExists,omitempty"`
	Unrecorded   *caseError `json:"unrecorded,omitempty"`
	Unwitnessed  *caseError `json:"unwitnessed,omitempty"`
}

type caseSeen struct {
	Object  *unstructured.Unstructured `json:"object,omitempty"`
	Unknown bool                       `json:"unknown,omitempty"`
	Err     *caseError                 `json:"err,omitempty"`
}

type caseExchange struct {
	Kind      string                     `json:"kind"`
	Reason    Reason                     `json:"reason"`
	Content   string                     `json:"content,omitempty"` // a hash of what is sent
	Object    *unstructured.Unstructured `json:"object,omitempty"`  // in the answer
	Namespace types.UID                  `json:"namespace,omitempty"`
	Err       *caseError                 `json:"err,omitempty"`
	At        time.Time                  `json:"at"`
}

// caseKnown is Known in a form that can be encoded.
type caseKnown struct {
	Exists    bool                     `json:"exists,omitempty"`
	Hash      string                   `json:"hash,omitempty"`
	Written   Version                  `json:"written"`
	Values    string                   `json:"values,omitempty"`
	Owned     string                   `json:"owned,omitempty"`
	Foreign   map[string]bool          `json:"foreign,omitempty"`
	Finding   FindingKind              `json:"finding,omitempty"`
	Path      casePath                 `json:"path,omitempty"`
	Kept      caseOthers               `json:"kept"`
	Earlier   caseOthers               `json:"earlier"`
	Futile    string                   `json:"futile,omitempty"`
	Tokens    [3]float64               `json:"tokens"` // that the budgets have: corrections, protections, creations
	Created   bool                     `json:"created,omitempty"`
	Contested map[string]caseContested `json:"contested,omitempty"`
	Recreated caseRecreation           `json:"recreated"`
	Judgement caseJudgement            `json:"judgement"`
}

type caseOthers struct {
	Existing  []casePath `json:"existing,omitempty"`
	Undesired []casePath `json:"undesired,omitempty"`
}

type caseContested struct {
	Path  casePath                  `json:"path"`
	Value any                       `json:"value"`
	Owner metav1.ManagedFieldsEntry `json:"owner"`
	Times int                       `json:"times"`
	Last  time.Time                 `json:"last"`
	Open  bool                      `json:"open"`
}

type caseRecreation struct {
	Hash    string     `json:"hash,omitempty"`
	Probed  time.Time  `json:"probed"`
	Err     *caseError `json:"err,omitempty"`
	Deleted time.Time  `json:"deleted"`
	Pending bool       `json:"pending,omitempty"`
}

type caseJudgement struct {
	Hash    string    `json:"hash,omitempty"`
	Refuses bool      `json:"refuses,omitempty"`
	Made    time.Time `json:"made"`
}

// caseError is an error in a form that keeps what decisions examine.
type caseError struct {
	Text    string         `json:"text"`
	Status  *metav1.Status `json:"status,omitempty"`
	NoMatch bool           `json:"noMatch,omitempty"`
	Gone    bool           `json:"gone,omitempty"` // ErrParentGone
}

func encodeError(err error) *caseError {
	if err == nil {
		return nil
	}
	encoded := &caseError{Text: err.Error(), NoMatch: meta.IsNoMatchError(err), Gone: errors.Is(err, ErrParentGone)}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		copied := status.Status()
		encoded.Status = &copied
	}
	return encoded
}

func (e *caseError) decode() error {
	switch {
	case e == nil:
		return nil
	case e.Status != nil:
		return &apierrors.StatusError{ErrStatus: *e.Status}
	case e.NoMatch:
		return &meta.NoKindMatchError{}
	case e.Gone:
		return ErrParentGone
	}
	return errors.New(e.Text)
}

// casePath is a path as JSON: a list of elements.
type casePath fieldpath.Path

// MarshalJSON encodes the elements like managedFields do.
func (p casePath) MarshalJSON() ([]byte, error) {
	elements := make([]string, len(p))
	for i, element := range p {
		text, err := fieldpath.SerializePathElement(element)
		if err != nil {
			return nil, err
		}
		elements[i] = text
	}
	return json.Marshal(elements)
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (p *casePath) UnmarshalJSON(data []byte) error {
	var elements []string
	if err := json.Unmarshal(data, &elements); err != nil {
		return err
	}
	*p = nil
	for _, text := range elements {
		element, err := fieldpath.DeserializePathElement(text)
		if err != nil {
			return err
		}
		*p = append(*p, element)
	}
	return nil
}

func encodePaths(paths []fieldpath.Path) (encoded []casePath) {
	for _, path := range paths {
		encoded = append(encoded, casePath(path))
	}
	return encoded
}

func decodePaths(encoded []casePath) (paths []fieldpath.Path) {
	for _, path := range encoded {
		paths = append(paths, fieldpath.Path(path))
	}
	return paths
}

// newCaseKnown returns what the run knows about a child, as of the given time.
func newCaseKnown(k *Known, r *redactor, now time.Time) caseKnown {
	encoded := caseKnown{
		Exists: k.exists, Hash: r.hash(k.applied.hash), Written: k.applied.written,
		Values: r.hash(k.applied.signature.values), Owned: k.applied.signature.owned, Foreign: k.applied.foreign,
		Finding: k.applied.finding.Kind,
		Path:    casePath(k.applied.finding.Path), Futile: r.hash(k.futile), Created: k.fights.exists,
		Kept:    caseOthers{encodePaths(k.kept.existing), encodePaths(k.kept.undesired)},
		Earlier: caseOthers{encodePaths(k.earlier.existing), encodePaths(k.earlier.undesired)},
		Recreated: caseRecreation{
			r.hash(k.recreation.hash), k.recreation.probed, r.err(k.recreation.err), k.recreation.deleted, k.recreation.pending,
		},
		Judgement: caseJudgement{r.hash(k.judgement.hash), k.judgement.refuses, k.judgement.made},
		Contested: map[string]caseContested{},
	}
	for i, budget := range k.fights.budgets(now) {
		encoded.Tokens[i] = math.Round(budget.TokensAt(now)*1e6) / 1e6
	}
	for name, field := range k.fights.contested {
		encoded.Contested[name] = caseContested{
			casePath(field.path), r.value(field.value), field.owner.ManagedFieldsEntry, field.times, field.last, field.open,
		}
	}
	return encoded
}

// budgets returns all budgets, in a fixed order.
func (f *fights) budgets(now time.Time) [3]budget {
	return [3]budget{f.corrections(now), f.protections(now), f.creations(now)}
}

func (e caseKnown) decode(now time.Time) *Known {
	k := &Known{
		exists: e.Exists, futile: e.Futile,
		applied: lastApply{
			hash: e.Hash, written: e.Written, signature: signature{e.Values, e.Owned}, foreign: e.Foreign,
			finding: Finding{Kind: e.Finding, Path: fieldpath.Path(e.Path)},
		},
		kept:    othersPaths{decodePaths(e.Kept.Existing), decodePaths(e.Kept.Undesired)},
		earlier: othersPaths{decodePaths(e.Earlier.Existing), decodePaths(e.Earlier.Undesired)},
		recreation: recreation{
			e.Recreated.Hash, e.Recreated.Probed, e.Recreated.Err.decode(), e.Recreated.Deleted, e.Recreated.Pending,
		},
		judgement: judgement{e.Judgement.Hash, e.Judgement.Refuses, e.Judgement.Made},
	}
	k.fights.exists = e.Created
	for i, budget := range k.fights.budgets(now) {
		spend(budget.Limiter, now, e.Tokens[i])
	}
	for name, field := range e.Contested {
		if k.fights.contested == nil {
			k.fights.contested = map[string]*contested{}
		}
		k.fights.contested[name] = &contested{
			path: fieldpath.Path(field.Path), value: field.Value,
			owner: ownership.Entry{ManagedFieldsEntry: field.Owner, Set: fieldpath.NewSet()},
			times: field.Times, last: field.Last, open: field.Open,
		}
	}
	return k
}

// spend takes tokens from a full limiter, until it has the given number. Parts of a token become time.
func spend(limiter *rate.Limiter, now time.Time, tokens float64) {
	missing := float64(limiter.Burst()) - tokens
	if missing <= 0 {
		return
	}
	whole := int(missing + 0.999999)
	gained := time.Duration((float64(whole) - missing) / float64(limiter.Limit()) * float64(time.Second))
	limiter.ReserveN(now.Add(-gained), whole)
}

// Record begins a decision like Begin, and records its Case.
func Record(parent *Parent, child *Child, facts Facts, seen Seen, known *Known, now time.Time) *Recording {
	r := newRedactor(parent.Names, child)
	c := &Case{
		Names: parent.Names, Parent: parentOf(parent), Writer: parent.Writer, Buckets: parent.Buckets,
		Child: caseChild{
			child.ID, child.GroupKind, child.Resource, r.object(child.Template), encodePaths(child.Kept), r.hash(child.Hash),
			child.Marked, child.Retain, child.Adopt, child.Recreate,
		},
		Facts: caseFacts{facts.ParentExists, r.err(facts.Unrecorded), r.err(facts.Unwitnessed)},
		Seen:  caseSeen{r.object(seen.Object), seen.Unknown, r.err(seen.Err)},
		Known: newCaseKnown(known, r, now), At: now,
	}
	return &Recording{Decision: Begin(parent, child, facts, seen, known, now), Case: c, redactor: r}
}

// Recording is a Decision whose Case is recorded.
type Recording struct {
	*Decision
	Case     *Case
	redactor *redactor
	last     Operation
}

// First returns the first operation, and whether there is one.
func (r *Recording) First() (Operation, bool) { return r.keep(r.Decision.First()) }

// Next returns the operation that follows the answer to the last one, and whether there is one.
func (r *Recording) Next(answer Answer) (Operation, bool) {
	r.Case.Exchanges = append(r.Case.Exchanges, caseExchange{
		Kind: r.last.Kind.String(), Reason: r.last.Reason, Content: r.redactor.digest(r.last),
		Object:    r.redactor.object(answer.Object),
		Namespace: answer.Namespace, Err: r.redactor.err(answer.Err), At: answer.At,
	})
	return r.keep(r.Decision.Next(answer))
}

func (r *Recording) keep(operation Operation, more bool) (Operation, bool) {
	if r.last = operation; !more {
		verdict := r.Verdict()
		r.Case.Outcome = verdict.Outcome
		if verdict.Err != nil {
			r.Case.Err = r.redactor.err(verdict.Err).Text
		}
	}
	return operation, more
}

// errNoError stands for the error of a verdict without one.
var errNoError = errors.New("there is no error")

// Replay decides again, with the recorded answers. It returns an error that describes the first difference.
func (c *Case) Replay() error {
	parent := &Parent{Unstructured: c.Parent, Names: c.Names, Writer: c.Writer, Buckets: c.Buckets}
	child := &Child{
		ID: c.Child.ID, GroupKind: c.Child.GroupKind, Resource: c.Child.Resource, Template: c.Child.Template,
		Kept: decodePaths(c.Child.Kept), Hash: c.Child.Hash, Marked: c.Child.Marked, Retain: c.Child.Retain,
		Adopt: c.Child.Adopt, Recreate: c.Child.Recreate,
	}
	facts := Facts{c.Facts.ParentExists, c.Facts.Unrecorded.decode(), c.Facts.Unwitnessed.decode()}
	seen := Seen{c.Seen.Object, c.Seen.Unknown, c.Seen.Err.decode()}
	redactor := newRedactor(parent.Names, child)
	decision := Begin(parent, child, facts, seen, c.Known.decode(c.At), c.At)
	defer decision.Stop()
	operation, more := decision.First()
	for i, exchange := range c.Exchanges {
		switch {
		case !more:
			return fmt.Errorf("operation %d: got no operation, want %s: %s", i, exchange.Kind, exchange.Reason)
		case operation.Kind.String() != exchange.Kind || operation.Reason != exchange.Reason:
			return fmt.Errorf("operation %d: got %s: %s, want %s: %s", i, operation.Kind, operation.Reason, exchange.Kind,
				exchange.Reason)
		case redactor.digest(operation) != exchange.Content:
			return fmt.Errorf("operation %d: %s: %s has another content", i, operation.Kind, operation.Reason)
		}
		operation, more = decision.Next(Answer{
			Object: exchange.Object, Namespace: exchange.Namespace, Err: exchange.Err.decode(), At: exchange.At,
		})
	}
	verdict := decision.Verdict()
	switch {
	case more:
		return fmt.Errorf("operation %d: got %s: %s, want none", len(c.Exchanges), operation.Kind, operation.Reason)
	case verdict.Outcome != c.Outcome || (verdict.Err != nil) != (c.Err != ""):
		return fmt.Errorf("got the outcome %d, want %d and the error %q: %w", verdict.Outcome, c.Outcome, c.Err,
			cmp.Or(verdict.Err, errNoError))
	}
	return nil
}

// parentOf returns the part of a parent that decisions read.
func parentOf(parent *Parent) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(parent.GroupVersionKind())
	object.SetNamespace(parent.GetNamespace())
	object.SetName(parent.GetName())
	object.SetUID(parent.GetUID())
	object.SetDeletionTimestamp(parent.GetDeletionTimestamp())
	object.SetFinalizers(parent.GetFinalizers())
	return object
}

// redactor replaces the values of a Secret by hashes, and leaves other kinds as they are.
type redactor struct {
	names Names
	key   []byte // nil if the child is not a Secret
}

func newRedactor(names Names, child *Child) *redactor {
	r := &redactor{names: names}
	if child.GroupKind == (schema.GroupKind{Kind: "Secret"}) {
		r.key = make([]byte, 32)
		_, _ = rand.Read(r.key) // never fails
	}
	return r
}

// value returns the hash of a value, unless it is one already.
func (r *redactor) value(value any) any {
	text := fmt.Sprint(value)
	if r.key == nil || isHash.MatchString(text) {
		return value
	}
	mac := hmac.New(sha256.New, r.key)
	mac.Write([]byte(text))
	return hashPrefix + hex.EncodeToString(mac.Sum(nil)[:8])
}

// hash returns the hash of a digest of the child, which would otherwise show whether a guess of its values is right.
// The part with the names of the parent and the child stays.
func (r *redactor) hash(digest string) string {
	if r.key == nil || digest == "" {
		return digest
	}
	content, names, hasNames := strings.Cut(digest, ".")
	hashed := fmt.Sprint(r.value(content))
	if hasNames {
		hashed += "." + names
	}
	return hashed
}

// hashPrefix begins a value that was replaced by its hash.
const hashPrefix = "hmac-"

var isHash = regexp.MustCompile("^" + hashPrefix + "[0-9a-f]{16}$")

// object returns a copy of an object of the kind of the child. The annotations of other clients, which can contain the
// whole object, are replaced as well.
func (r *redactor) object(object *unstructured.Unstructured) *unstructured.Unstructured {
	if object == nil || r.key == nil {
		return object.DeepCopy()
	}
	return &unstructured.Unstructured{Object: r.content(object.DeepCopy().Object)}
}

func (r *redactor) content(content map[string]any) map[string]any {
	for _, name := range []string{"data", "stringData"} {
		switch fields := content[name].(type) {
		case nil:
		case map[string]any:
			for key, value := range fields {
				if value != nil {
					fields[key] = r.value(value)
				}
			}
		default:
			content[name] = r.value(fields)
		}
	}
	metadata, _ := content["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	for key, value := range annotations {
		text, isText := value.(string)
		switch key {
		case r.names.Applied(), r.names.Recreated():
			annotations[key] = r.hash(text)
		case r.names.ParentLabel(), r.names.Stage(), r.names.Self(), r.names.Restored(), r.names.Retained(),
			r.names.Adopted():
		default:
			if isText {
				annotations[key] = r.value(text)
			}
		}
	}
	return content
}

// err returns an error without its text, if it can contain values.
func (r *redactor) err(err error) *caseError {
	encoded := encodeError(err)
	if encoded == nil || r.key == nil || isTooLarge(err) {
		return encoded
	}
	encoded.Text = "an error about a Secret"
	if status := encoded.Status; status != nil {
		status.Message = ""
		if status.Details != nil {
			details := *status.Details
			details.Causes = slices.Clone(details.Causes)
			for i := range details.Causes {
				details.Causes[i].Message = ""
			}
			status.Details = &details
		}
	}
	return encoded
}

// digest returns a digest of what an operation sends.
func (r *redactor) digest(operation Operation) string {
	var object any
	if operation.Object != nil {
		object = r.object(operation.Object).Object
	}
	patch := runtime.DeepCopyJSON(asJSON(operation.Patch))
	if r.key != nil {
		patch = r.content(patch)
	}
	data, err := json.Marshal([]any{
		object, patch, operation.UID, operation.ResourceVersion, operation.Manager, operation.Force,
	})
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// asJSON returns a patch with the types into which JSON is decoded.
func asJSON(patch map[string]any) (result map[string]any) {
	data, err := json.Marshal(patch)
	if err == nil {
		err = json.Unmarshal(data, &result)
	}
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return result
}
