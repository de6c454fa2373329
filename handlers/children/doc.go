// Package children keeps the child objects of a custom resource in their desired state. [Reconciler.Reconcile] creates
// and corrects the desired children of a parent, and deletes all other children. All state that must survive a crash is
// stored in the API server.
//
//	reconciler, err := children.New(children.Config{
//		Client: client,
//		Mapper: mapper,
//		Name:   "platform.example.com",
//		Kinds:  []children.Kind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}},
//	})
//	...
//	result, err := reconciler.Reconcile(ctx, id, widget, children.Desired{Stages: [][]children.Child{
//		children.Stage(database), // is applied first and deleted last
//		children.Stage(frontend, backend),
//	}})
//
// # Result
//
// The [Result] describes each desired child with a [ChildResult]. Its [Outcome] is Created, Applied or Unchanged if the
// child has its desired state. Otherwise, it is Waiting, Conflict, Refused, Drifting or Failed, with a reason for
// programs and a message for users. The error that Reconcile returns is for the engine: it causes a retry with backoff,
// or a reconcile after a delay.
//
//	Waiting   an earlier stage is not complete, or an object with the name is being deleted
//	Conflict  an object with the name belongs to another owner
//	Refused   the desired state is invalid, not permitted or not supported
//	Drifting  other clients change or delete the child again and again
//	Failed    a request failed
//
// A child can have its desired state and nevertheless a reason. StoredDifferently means that the API server stores a
// field with another value than the desired one, for example because an admission webhook replaces an image. The API
// server compares values by their meaning: "1000m" and "1" are the same quantity. UndesiredItem is described below.
//
// # Plans
//
// [Reconciler.Plan] returns what Reconcile would do, without a write: the operations in their order, each with its
// reason, its preconditions, what it may destroy, and the fields that change. With [PlanOptions].DryRun, the API server
// validates the children, calls admission and adds defaults. An operation that depends on what the API server makes of
// an earlier one is marked.
//
// # Apply
//
// A child is written with server-side apply. An owner reference makes the parent its controller, so that Kubernetes
// deletes the child together with the parent. Nothing is written if nothing has changed. A child is applied
//
//   - when the desired child or [Identity].Name has changed, which is detected with a hash in an annotation;
//   - when an applied field has a different value in the cache;
//   - when this controller no longer owns an applied field, according to the managed fields in the cache.
//
// Drift is therefore corrected with a forced apply. Fields that the controller never applied are not changed. If
// someone adds an item to an applied list, the item is kept if the list has keys, and removed otherwise.
//
// The API server can store a value in a different form: "1000m" becomes "1". This looks like drift, so the child is
// applied once more, without effect, in each run of the controller.
//
// # Lagging caches
//
// A cache can lack the last writes. What the API server returned for a write is therefore the current state of a child
// until the cache contains it, for at most 30 seconds, and within one run. The same applies to deletions. An older
// version never replaces a newer one. If the cache lacks a child that was created, or holds one that was deleted, the
// child is read from the API server before it is written again.
//
// If desired children depend on existing ones, read the latter with [Reconciler.Latest], or take [ChildResult].Object.
// Otherwise, a value could go back to an older one, or a child could be deleted because its name was computed from an
// older object.
//
// # Repairs
//
// What a forced apply changes depends on the managedFields of the child. If they are not as expected, Reconcile repairs
// them with a patch, and applies the child again. Both requests contain the resourceVersion. The repairs are:
//
//   - Someone edited the key of a list item, such as the port of a Service or the name of a container. The item is put
//     back. The edited item is removed if it has all other fields of the one desired item that is missing, or if the
//     API server refuses the apply, names the list, and the list has no more edited items than missing ones. Otherwise,
//     both stay, and the reason of the child is UndesiredItem until the item is gone or desired, as far as this run has
//     seen the edit. Items stay if another applier or an admission webhook owns them, or if they existed before the
//     item was missing. A new leader only knows the latter from the times in managedFields, which are those of a
//     manager's last change. If the API server refuses the child without the edited item too, the item is given back to
//     its owner, and stays until the desired child changes.
//   - An entry has a version that the API server no longer serves, or that lacks a field of the child. The entry is
//     moved to the version of the child. Fields that the child does not have in that version are dropped from the
//     entry.
//   - Someone cleared the managedFields. The fields of the child get their owner back, so that a field that later
//     leaves the child is removed. This requires that the controller runs before the field leaves.
//   - A list that was owned as a whole became a list with keys or a set. Items that nobody owns and that are no longer
//     desired are removed.
//
// A child that exists, and whose update the API server refuses, delays neither later stages nor the pruning of other
// children. For example, a field is immutable, a policy forbids the change, or the child is larger than etcd allows.
//
// If a desired child cannot be merged, the API server responds with 500 and without a reason: a list has two items with
// the same key, a value has the wrong type, or a field is unknown. Errors of its storage and of managedFields look the
// same. Two dry runs find out the cause, at most once per minute for the same desired child. If the API server cannot
// apply the child, but can apply its metadata alone, the child is Refused with the reason Invalid.
//
// A child that drifts delays nothing either, as long as it exists.
//
// The stringData of a Secret is applied as data, the form in which the API server stores it, so that drift is
// corrected.
//
// # Fights
//
// What other clients undo again and again is repeated with a budget for each child, so that no fight is without a
// limit. A child that waits for its budget is Drifting.
//
//	a field of the child is changed          5 corrections at once, and then one in ten seconds
//	RBAC objects, network policies, and the  50 corrections at once, and then one per second
//	metadata that makes an object a child
//	the child is deleted                     5 creations after the first, and then one in ten seconds
//
// The result names the field and the manager. A child that is deleted is Drifting even after it has been created again,
// as long as the budget is used up. A Job with ttlSecondsAfterFinished is an example: Kubernetes deletes it when it has
// finished, and it would run again. Leave the field out: the finished Job stays until its parent is deleted, or until
// it is no longer desired. For work that is repeated, use a CronJob, whose jobTemplate can have the field.
//
// A field that two clients set is better left to one of them. If it leaves the template, and this run has corrected it
// more than once within ten minutes, it is handed over: Reconcile sets it to the other client's last value, in the name
// of that client's field manager, so that the apply does not remove it. This covers numbers, booleans and short texts
// outside of lists. A run that has not seen the changes removes the field, as any other that leaves the template. Use
// KeepExisting to be independent of this.
//
// # Kept fields
//
// The fields in [Child].KeepExisting are set if they do not exist, and not changed or removed once they exist. One
// mechanism serves two purposes:
//
//	KeepExisting: []children.KeptField{{Path: "spec.replicas", Reason: "scaled by the HorizontalPodAutoscaler"}}
//	KeepExisting: []children.KeptField{{Path: "data.password", Reason: "generated once"}}
//
// Other clients may set such a field: this is neither drift nor a reason for a write. And a handler may compute another
// value in each call, such as a new password: the first value that the API server has stored stays. Both are judged
// with the object that a write replaces. The write contains its resourceVersion and the value that it has, and a
// creation fails if the object exists, so that a cache that is behind, a new leader or a restored cache cannot change a
// value. To use a generated value elsewhere, read it from [ChildResult].Object, and not from what was desired.
//
// A field that leaves the desired child is kept as long as KeepExisting lists it. A value is lost with its object: set
// Retain, or store it elsewhere, if it must outlive the parent. To rotate a value, remove the field from the object,
// and Reconcile sets it again. KeepExisting cannot be combined with [OnImmutableRecreate], and is not possible for RBAC
// objects and network policies.
//
// # Recreation
//
// A child with [OnImmutableRecreate] is deleted and created again if it can be created in its desired state but not be
// changed into it. The text of errors is not used to determine this. Both of the following must be true:
//
//   - The API server refuses the update with status 422 (Invalid).
//   - A dry run that creates the child is answered with 409 (AlreadyExists). The API server validates an object and
//     calls admission before it checks the name, so the new object passes both.
//
// The first is usually true because a field is immutable. It is also true if an admission policy refuses the update
// with the reason Invalid, or if fields of others conflict with the child. The dry run calls admission webhooks. It is
// sent only after a refused update of such a child, and at most once per minute for the same desired state. With any
// other response, the child is kept, for example if a webhook does not support dry runs. This includes two cases in
// which the old object is in the way: the namespace has no quota for another object, or the child is a Service with a
// fixed node port that does not change.
//
// The following children are never deleted by a recreation. Except for the first two cases, which are errors of the
// desired child, Reconcile returns the API server's error together with the obstacle.
//
//   - Retained children.
//   - Children of kinds that hold data; see [CanRecreate].
//   - Objects that are not, or no longer, children of the parent, or whose parent is being deleted.
//   - Adopted children. Their annotation <name>/adopted is written with the adoption. Children that were adopted by a
//     version of this package without the annotation cannot be distinguished from others.
//   - Children with finalizers.
//   - StatefulSets whose persistentVolumeClaimRetentionPolicy deletes volumes with the StatefulSet.
//
// The deletion contains the UID and the resourceVersion that the refused update had. Dependents of the child are
// deleted in the background, so a custom resource must not be recreated if its controller stores data with it. The new
// object is created once the old one is gone.
//
// A child is recreated at most once per minute, and an object that was created by a recreation is not recreated for the
// same desired state. Otherwise, a webhook that changes an immutable field of each new object would cause a loop. The
// annotation <name>/recreated, which contains a hash of the desired child, limits recreations across changes of the
// leader. Users who can update a child can remove both annotations.
//
// # Ownership
//
// An object belongs to a Reconciler if its controller is the parent and its label <name>/parent contains the parent's
// UID. The key of the label contains Config.Name, so other controllers can have children of the same parent. If a user
// removes the label, a desired child gets it back, because the annotation <name>/applied remains. Other children are
// not pruned without the label, and Kubernetes deletes them together with the parent. Managed fields do not determine
// which objects are children.
//
// An object with the name of a desired child that does not belong to the Reconciler is a conflict, for which the error
// wraps [ErrNotOwned]. [Child].Adopt allows Reconcile to take over an object without a controller, or with another
// controller of the same parent.
//
// Fields that other managers had set before an object is adopted or restored stay, because they can belong to others.
// As long as such a field exists and is not desired, the reason of the child is UndesiredField, as far as this run has
// adopted the object. This includes fields that were applied, and the data of ConfigMaps and Secrets. Other fields that
// were created or updated are not included, because they cannot be distinguished from defaults.
//
// After a restore from a backup, a child often has no owner reference, and its label contains an earlier UID. Such an
// object is a conflict, for which the error wraps [ErrNotConfirmed], until someone who can update it confirms that it
// belongs to the parent, with the annotation <name>/restored:
//
//   - The UID of the parent confirms one child.
//   - The UID of the parent's namespace confirms a child whose annotation <name>/applied was written for a parent of
//     the same kind, namespace and name, and for a child of the same name. It can be set on all objects in the
//     namespace.
//
// The object must have no controller, and still have the label <name>/parent and the annotation <name>/applied.
// Reconcile removes the annotation when it writes the child. Children that are no longer desired have no owner, and
// stay.
//
// kubectl's ApplySet labels are not used. An ApplySet has one parent with a label whose value is derived from its name,
// and kubectl refuses a parent whose tooling it does not know. The labels could not show that a parent was restored or
// created again, and would be a second record next to the inventory.
//
// # Inventory
//
// The inventory is an annotation on the parent that lists the kinds of its children. A kind is recorded before the
// first child of that kind is written. The last stage, and the namespaces of children outside the parent's namespace,
// are recorded as well. Children that are no longer desired are therefore found and deleted, even by another process.
// Their kinds must be in Config.Kinds. While the inventory contains a namespace that is not
// in Config.Namespaces, Reconcile returns [ErrNamespaceNotListed] and keeps the inventory and the finalizer.
//
// Children in other namespaces, or at cluster scope, cannot be found if their kind, or its CrossNamespace, has left
// Config.Kinds. Reconcile then applies and prunes all other children, keeps the inventory, and returns
// [ErrCrossNamespaceNotListed]. When the parent is deleted, the kind is reported to [Desired].LeftBehind. Children of
// such a kind in the parent's namespace are no longer pruned, and are deleted with the parent.
//
// A long list of namespaces is compressed. The inventory has room for 10,000 namespaces whose names differ in up to 20
// random characters, and for more if the names are similar. Its limits are 192 KiB and 1,000 kinds. In addition,
// Kubernetes limits all annotations of an object to 256 KiB in total. If the desired children exceed these limits, the
// recorded kinds and namespaces stay, and others are added in sorted order as far as they fit. The remaining children
// fail with [ErrInventoryFull] before anything is written for them. All other children are applied and pruned,
// including those in later stages.
//
// A cache can contain a parent that has been deleted. Before the first child of a call is created, the parent is
// therefore read from the API server, unless recording the inventory has already shown that it exists.
//
// # Deletion
//
// Children are deleted in the reverse order of their stages, which are recorded in an annotation: the children in a
// stage are deleted when those in all later stages are gone. Pending deletions are in
// [Result].Pending.
//
// Kubernetes does not keep this order. A parent with more than one stage is therefore given a finalizer before its
// children are written. When such a parent is deleted, Reconcile deletes the children in later stages, waits until they
// are gone, deletes those in the first stage, and removes the finalizer. It does not wait for children in the first
// stage that have an owner reference. Kubernetes deletes these too, but keeps a child forever if its garbage collector
// knows it only by a version that is no longer served. If the permission to delete such a child is missing, it is left
// to Kubernetes.
//
// If the parent is deleted with foreground propagation, Kubernetes does not wait for Reconcile. If its namespace is
// terminating and a request from Reconcile fails, for example because its permissions have been deleted, Kubernetes
// deletes the children in the namespace in any order. Children of kinds that are not in Config.Kinds are also deleted
// in any order.
//
// While a child in a later stage has another controller's finalizer, the deletion of all earlier stages waits.
//
// A desired child whose kind cannot be created, listed or deleted, such as a TokenReview, fails with
// [ErrKindNotSupported] before anything is written for it. A kind can also lose verbs later, for example if an
// extension API server is replaced. If the API server responds that it does not support a list or a deletion, the
// parent's deletion continues without these children. The same applies if the API server has not served the type for
// ten seconds since the parent was deleted. [Desired].LeftBehind receives the children that can still exist. Pruning
// skips such kinds, and keeps them in the inventory.
//
// # Children in other namespaces
//
// An owner reference has no effect on a child outside the namespace of a namespaced parent. Such a child is marked
// instead. The mark consists of the label <name>/parent with a hash of the parent's kind, namespace and name, the
// annotation <name>/parent with a record of the parent, and the annotation <name>/self with the child's own name, which
// distinguishes the child from copies. The kind of such a child must be in Config.Kinds with CrossNamespace set. A
// parent with such children is given the finalizer too, and Reconcile deletes the children. A child whose mark is
// removed no longer belongs to the parent.
//
// The record contains the UIDs of the parent and of its namespace, and [Identity].Name. After a restore from a backup,
// the parent has another UID. The marked children belong to it again if the namespace is still the same and the same
// identity writes the children. Otherwise, someone else may have created the namespace, the parent or its type again,
// and the children are conflicts. The annotation <name>/restored on a child, with the UID of the parent or of its
// namespace, confirms that the parent has been restored. For a parent or a namespace that is created later, the
// annotation has no effect. Reconcile removes it when it writes the child. Only users who can update the child can set
// it.
//
// # Formats
//
// The mark and the inventory have a format with a number. The first format of a release is 1. A later version of this
// package can read the formats of the version before it. If a newer version has written a mark or an inventory that
// this version cannot read, for example after a rollback, the error wraps [ErrNewerFormat]. The child is a conflict,
// and is neither changed nor deleted. If the parent is being deleted, or if the inventory cannot be read, nothing is
// written at all. The newer version continues where it stopped.
//
// # Parents that are removed in spite of the finalizer
//
// A deletion that began before the finalizer was added can remove the parent afterwards, because the API server does
// not look for finalizers again (kubernetes issue 77988). Each run therefore records the children that it writes and
// that Kubernetes does not delete; see [Memory]. When the parent is gone, [Reconciler.Forget] deletes them.
// handlers.Object calls it. Handlers that do not use handlers.Object must call it. Before Reconcile writes anything for
// a new parent with the same name, it does the same, so that the new parent does not take over these children.
//
// The API server is asked whether the parent is gone. Only objects with the mark of exactly this parent are deleted. If
// the dependents were orphaned, their marks are removed instead. If a deletion fails, the children stay recorded, and
// Forget or Reconcile returns the error. If Reconcile has seen that the parent is being deleted and has the finalizer,
// the children are not recorded any more: someone who then removes the finalizer keeps them.
//
// If the process crashes, or loses its leadership, between the deletion of such a parent and that of its children, the
// children stay, with the mark of the parent. Nothing deletes them later: there is no inventory that would show whether
// a mark is forged.
//
// # Orphaned children
//
// If a parent is deleted and its dependents are orphaned, all children are kept. Kubernetes removes the owner
// references, and Reconcile removes the marks. A later parent with the same name neither owns nor prunes these
// children.
//
// Kubernetes removes the orphan finalizer within milliseconds. Afterwards, only the owner references show that the
// dependents have been orphaned. A parent with marked children is therefore given a witness: a ConfigMap in its
// namespace, named children-of-<UID>-<hash of Config.Name>, with an owner reference to the parent. Once the witness
// exists, the annotation <name>/witness on the parent contains the parent's UID. Without a witness, no child is marked.
//
// The first line that applies to a deleted parent decides what happens to its marked children:
//
//   - The parent has the orphan finalizer: they are kept.
//   - The parent has the foregroundDeletion finalizer: they are deleted.
//   - The witness has lost its owner reference, because the dependents were orphaned: they are kept.
//   - The witness has its owner reference, because the parent was deleted in the background: they are deleted.
//   - The namespace is terminating, and the parent was deleted more than three seconds later: they are deleted. The
//     deletion of the namespace has deleted the parent and the witness. Kubernetes waits for five seconds before it
//     deletes the objects in a namespace.
//   - The namespace is terminating, and the parent was deleted before: they are kept. The deletion of the namespace has
//     deleted the witness, and nothing shows how the parent was deleted.
//   - The annotation contains the parent's UID, and the witness is gone, because a deletion in the foreground deletes
//     it first: they are deleted.
//   - The annotation is missing or contains another UID: they are kept. The parent has been restored from a backup and
//     deleted before its first reconcile, or the annotation has been edited.
//
// The witness is read only if the annotation contains the parent's UID. If the permission to read it is missing, and
// the namespace is not terminating, Reconcile returns an [UnknownPropagationError]. If a user removes the owner
// reference of the witness, the children are kept. If a user deletes the witness, they are deleted, unless the next run
// has created it again. Children that are kept because nothing shows how their parent was deleted are reported to
// [Desired].LeftBehind. An orphaning deletion in a namespace that has been terminating for more than three seconds is
// not recognized once the witness is gone.
//
// A controller whose parents have the finalizer must also call Reconcile for a parent that is being deleted, for
// example from the cleanup of handlers.Finalizer.
//
// # Shards
//
// With [Config.LabelBuckets], each child has the label <name>/bucket with the bucket of its parent's type; see
// [dynamiccontroller.BucketOf]. A watch with [dynamiccontroller.WithBucketLabel] then holds only the children of types
// in the same shard, and those without the label:
//
//	labelled, err := labels.Parse(name + "/parent") // the children of all parents
//	...
//	dynamiccontroller.Owns(configMaps, dynamiccontroller.WithCache(dynamiccontroller.CacheFull),
//		dynamiccontroller.WithLabelSelector(labelled), dynamiccontroller.WithBucketLabel(children.BucketLabel(name)))
//
// Each type of parents then needs its own Reconciler, whose [Cache] is the SecondaryLister of that type.
//
// Children without the label are labelled when their parent is reconciled, and are pruned like others. The label and
// the option can be introduced in any order, or together. It is better to begin with the label, because each process
// keeps the children without it once for each of its shards. If a user changes the label of a desired child, Reconcile
// puts it back. A child with a wrong label that is no longer desired is not pruned as long as other children of its
// type are desired, as if its label <name>/parent had been changed.
//
// The label depends on the type of the parent only. It is not written again when the shard of the type moves, or when
// the number of shards changes.
//
// # Trust
//
// The config and the desired children come from the author of a controller, and are trusted. Parents and children can
// be changed by anyone with permission to do so, and are not trusted. In particular:
//
//   - A [Reconciler] looks only for children of kinds that the author names, regardless of the inventory of a parent.
//     It reads at most 192 KiB and 1,000 entries of the inventory, and at most 4 MiB of decompressed namespaces.
//     Entries of other kinds cost no requests, do not delay the deletion of the parent, and never cause a write to the
//     parent. If such an entry contains namespaces, Reconcile returns an error, but still applies and prunes all
//     children.
//   - It lists children across namespaces only if the author declares their kind with [Kind].CrossNamespace. If anyone
//     else adds the finalizer to a parent, it is removed when the parent is deleted.
//   - It changes or deletes an object only if the object has the parent as its controller or, in another namespace, the
//     parent's mark. An annotation alone is never sufficient. Exceptions are objects without a controller and without a
//     mark: with [Child].Adopt, and former children that are confirmed as restored.
//   - A parent with the name of an earlier one does not get the marked children of that parent if its namespace has
//     been created again, or if another identity writes the children.
//   - Anyone who can create an object can forge the owner reference, the mark and the stage of a child. An object is
//     ignored if the parent's inventory does not contain its namespace for its kind. A stage beyond the last one in the
//     inventory counts as the last one. Pruning continues after a child that the identity cannot delete.
//
// Users who can update a parent can still hide its children: without the entry in the inventory, children of a kind
// that is no longer desired are not pruned. Without the finalizer, the namespaces in the inventory, or the annotation
// <name>/witness, children in other namespaces outlive the parent.
//
// Users who can update a child can take it out of the parent's control by removing the owner reference or the mark, and
// can change when it is deleted. Users who can create objects of a kind, in a namespace that contains children of that
// kind, can delay the deletion of the parent. To do so, they create an object with an owner reference to the parent
// that has a finalizer or that the identity cannot delete. The error from Reconcile names the object.
//
// # Writes and permissions
//
// Parents are written with Config.Client, and children with the client of Desired.As, which defaults to Config.Client.
// Children are always listed with Config.Client. The identity therefore does not need list.
//
// A write that depends on an object that was read contains the object's resourceVersion or UID, as described in package
// handlers. An object is created only if it does not exist.
//
// A [Reconciler] needs get, list, create, patch and delete on children, and get and patch on parents. For the witness
// of a parent with marked children, the client of Desired.As needs get, create, patch and delete on config maps in the
// parent's namespace. Without get on namespaces, the Reconciler cannot determine whether a namespace is terminating,
// and the marked children of restored parents are conflicts. If the admission plugin
// OwnerReferencesPermissionEnforcement is enabled, it also needs update on the finalizers subresource of parents,
// because its owner references set blockOwnerDeletion.
package children
