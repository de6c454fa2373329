// Package adapter runs reconcilers that were written for controller-runtime on a DynamicController:
//
//   - [Handler] calls a reconcile.Reconciler.
//   - [MapFunc] and [Predicate] convert the functions of its watches.
//   - [NewClient] returns a client.Client that reads from the engine's caches.
//
// They replace a controller's builder, but not its reconciler. For example,
//
//	ctrl.NewControllerManagedBy(mgr).
//		For(&examplev1.Team{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
//		Owns(&corev1.ConfigMap{}).
//		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.teamsIn)).
//		Complete(r)
//
// becomes
//
//	whole := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
//	watches := []dynamiccontroller.Watch{
//		dynamiccontroller.Owns(configMaps, whole),
//		dynamiccontroller.Watches(namespaces, adapter.MapFunc[corev1.Namespace](r.teamsIn), whole),
//	}
//	r.Client = adapter.NewClient(live, engine.Lister, adapter.WatchCache(engine, teams, watches...))
//	err := engine.StartServingGVK(ctx, teams, adapter.Handler(r), watches[0], watches[1],
//		dynamiccontroller.WithPredicate(adapter.Predicate[examplev1.Team](predicate.GenerationChangedPredicate{})),
//		dynamiccontroller.WithConcurrency(1))
//
// The README describes the migration step by step and lists the differences.
package adapter
