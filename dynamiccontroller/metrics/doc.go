// Package metrics exports the metrics of a DynamicController and of a Replica to Prometheus. Only served types have
// series.
//
//	reconciles := metrics.NewReconciles()
//	controller, err := dynamiccontroller.NewForConfig(log, config, cfg, dynamiccontroller.WithMetrics(reconciles))
//	...
//	prometheus.MustRegister(reconciles, metrics.NewStatus(controller), metrics.NewLeadership(replica))
//
// The metrics are:
//
//	dynamiccontroller_reconciles_total{group,version,resource,outcome}   handler calls, by outcome
//	dynamiccontroller_reconcile_causes_total{group,version,resource,cause} handler calls, by kind of cause
//	dynamiccontroller_write_lags_total{group,version,resource}           handler calls before own writes had arrived
//	dynamiccontroller_reconcile_duration_seconds{group,version,resource} duration of handler calls
//	dynamiccontroller_queue_duration_seconds{group,version,resource}     time in the queue before each handler call
//	dynamiccontroller_sync_duration_seconds                              time until a watch has synced, of all types
//	dynamiccontroller_objects{group,version,resource}                    objects in the cache
//	dynamiccontroller_cache_bytes{group,version,resource}                approximate memory used by the cache
//	dynamiccontroller_queue_items{group,version,resource,lane}           waiting objects: live, background, delayed,
//	                                                                     settling
//	dynamiccontroller_queue_oldest_seconds{group,version,resource}       waiting time of the head of the queue
//	dynamiccontroller_handlers_running{group,version,resource}           running handlers
//	dynamiccontroller_objects_failing{group,version,resource}            objects that will be retried
//	dynamiccontroller_objects_parked{group,version,resource}             objects that wait for their next event
//	dynamiccontroller_objects_unusable{group,version,resource}           objects that were received but cannot be used
//	dynamiccontroller_type_state{group,version,resource,state}           1 for the current state of the type's watch
//	dynamiccontroller_secondary_watches{group,version,resource,state}    watches added by Owns and Watches
//	dynamiccontroller_secondary_objects{group,version,resource}          objects in the caches of these watches
//	dynamiccontroller_secondary_objects_unusable{group,version,resource} objects of these watches that cannot be used
//	dynamiccontroller_secondary_cache_bytes{group,version,resource}      approximate memory used by these caches
//	dynamiccontroller_leading                                            1 if the replica leads
//	dynamiccontroller_term                                               the current or last term of the replica
//
// The values of the label cause are the names of the constants of [dynamiccontroller.CauseKind]. A call with several
// kinds of cause counts for each of them, so that their sum can exceed the number of calls.
//
// With [WithoutTypeLabels], the labels group, version and resource are left out, and values are summed over all types.
package metrics
