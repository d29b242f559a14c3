-- A held request is not late, and neither near its deadline nor the oldest that somebody waits for.

CREATE OR REPLACE VIEW audit_months AS
    WITH told AS (
        SELECT model, date_trunc('month', day)::date AS month, sum(requests) FILTER (WHERE NOT late) AS on_time,
               sum(requests) FILTER (WHERE late) AS late
        FROM audit_counts WHERE late IS NOT NULL GROUP BY 1, 2
        UNION ALL
        SELECT r.model, date_trunc('month', r.received_at AT TIME ZONE 'UTC')::date, 0, count(*) FROM requests r
        WHERE r.ended_at IS NULL AND r.held_at IS NULL AND r.due_at < now()
            AND NOT EXISTS (SELECT FROM drills d WHERE d.request_id = r.id)
        GROUP BY 1, 2
    ), counted AS (
        SELECT model, month, coalesce(sum(on_time), 0)::bigint AS on_time, coalesce(sum(late), 0)::bigint AS late
        FROM told GROUP BY model, month
    )
    SELECT model, month, on_time, late, on_time::double precision / (on_time + late) AS on_time_share
    FROM counted WHERE on_time + late > 0;

CREATE OR REPLACE VIEW audit_open AS
    SELECT model, count(*) AS open, min(received_at) FILTER (WHERE held_at IS NULL) AS oldest_open_received_at,
           count(*) FILTER (WHERE due_at < now() AND held_at IS NULL) AS open_past_deadline,
           count(*) FILTER (WHERE due_at >= now() AND received_at + 0.8 * (due_at - received_at) < now()
               AND held_at IS NULL) AS open_near_deadline,
           count(*) FILTER (WHERE status = 'failed') AS open_failed,
           count(*) FILTER (WHERE held_at IS NOT NULL) AS open_held
    FROM requests r
    WHERE ended_at IS NULL AND NOT EXISTS (SELECT FROM drills d WHERE d.request_id = r.id) GROUP BY model;

CREATE OR REPLACE VIEW audit_summary AS
    WITH classes AS (
        SELECT model, step, class, sum(requests) AS requests FROM audit_times
        WHERE step IN ('applied', 'completed') GROUP BY model, step, class
    ), ranked AS (
        SELECT model, step, class, sum(requests) OVER (PARTITION BY model, step ORDER BY class) AS up_to,
               sum(requests) OVER (PARTITION BY model, step) AS of_step
        FROM classes
    ), timed AS (
        SELECT model, step, audit_seconds(min(class) FILTER (WHERE up_to >= 0.5 * of_step)) AS p50,
               audit_seconds(min(class) FILTER (WHERE up_to >= 0.95 * of_step)) AS p95,
               audit_seconds(min(class) FILTER (WHERE up_to >= 0.99 * of_step)) AS p99
        FROM ranked WHERE of_step > 0 GROUP BY model, step
    ), counted AS (
        SELECT p.model, coalesce(sum(requests), 0)::bigint AS requests,
               coalesce(sum(requests) FILTER (WHERE status = 'queued'), 0)::bigint AS queued,
               coalesce(sum(requests) FILTER (WHERE status = 'applied'), 0)::bigint AS applied,
               coalesce(sum(requests) FILTER (WHERE status = 'completed'), 0)::bigint AS completed,
               coalesce(sum(requests) FILTER (WHERE status = 'failed'), 0)::bigint AS failed,
               coalesce(sum(requests) FILTER (WHERE status = 'cancelled'), 0)::bigint AS cancelled,
               coalesce(sum(requests) FILTER (WHERE guarantee = 'span'), 0)::bigint AS guarantee_span,
               coalesce(sum(requests) FILTER (WHERE guarantee = 'retrained'), 0)::bigint AS guarantee_retrained,
               coalesce(sum(requests) FILTER (WHERE guarantee = 'graph_only'), 0)::bigint AS guarantee_graph_only,
               coalesce(sum(requests) FILTER (WHERE repair = 'pending'), 0)::bigint AS repair_pending,
               coalesce(sum(requests) FILTER (WHERE repair = 'not_converged'), 0)::bigint AS repair_not_converged,
               (coalesce(sum(requests) FILTER (WHERE unchanged), 0)
                   / nullif(sum(requests) FILTER (WHERE unchanged IS NOT NULL), 0))::double precision
                   AS unchanged_projection_share
        FROM pointers p LEFT JOIN audit_counts c ON c.model = p.model GROUP BY p.model
    ), months AS (
        SELECT model, sum(on_time)::bigint AS on_time, sum(late)::bigint AS late FROM audit_months GROUP BY model
    )
    SELECT p.model, p.version AS model_version, v.rank, v.live_nodes,
           c.requests, c.queued, c.applied, c.completed, c.failed, c.cancelled, c.guarantee_span, c.guarantee_retrained,
           c.guarantee_graph_only, c.repair_pending, c.repair_not_converged, c.unchanged_projection_share,
           coalesce(o.open, 0) AS open, o.oldest_open_received_at,
           coalesce(o.open_past_deadline, 0) AS open_past_deadline,
           coalesce(o.open_near_deadline, 0) AS open_near_deadline, coalesce(o.open_failed, 0) AS open_failed,
           coalesce(m.on_time, 0) AS on_time, coalesce(m.late, 0) AS late, s.deadline_days,
           a.p50 AS p50_seconds_to_applied, a.p95 AS p95_seconds_to_applied, a.p99 AS p99_seconds_to_applied,
           d.p50 AS p50_seconds_to_completed, d.p95 AS p95_seconds_to_completed, d.p99 AS p99_seconds_to_completed,
           coalesce(o.open_held, 0) AS open_held
    FROM pointers p JOIN counted c ON c.model = p.model CROSS JOIN service_settings s
    LEFT JOIN versions v ON v.model = p.model AND v.number = p.version LEFT JOIN audit_open o ON o.model = p.model
    LEFT JOIN months m ON m.model = p.model
    LEFT JOIN timed a ON a.model = p.model AND a.step = 'applied'
    LEFT JOIN timed d ON d.model = p.model AND d.step = 'completed';

CREATE OR REPLACE VIEW audit_export AS
    SELECT r.id, r.model, r.kind, r.status, r.count, r.received_at, r.applied_at, r.completed_at, r.failed_at,
           r.cancelled_at, r.guarantee, r.repair, r.already_deleted_by,
           extract(epoch FROM r.applied_at - r.received_at)::double precision AS seconds_to_applied,
           extract(epoch FROM r.completed_at - r.received_at)::double precision AS seconds_to_completed,
           v.id AS batch_id, v.committed_at, v.number_before AS model_version_before, v.number AS model_version_after,
           v.weights_sha256_before, v.weights_sha256 AS weights_sha256_after, b.rank_before, v.rank AS rank_after,
           v.directions_removed, v.live_nodes, a.deleted, a.injected_norm_before, a.injected_norm_after,
           b.lost_direction_norm_before, b.lost_direction_norm_after, a.channel_norm_before, a.channel_norm_after,
           v.span_residual, b.weight_change, v.distance_bound_before,
           CASE WHEN e.id IS NULL THEN v.distance_bound_after ELSE e.distance_bound_after END AS distance_bound_after,
           v.distance_bound_before_relative,
           CASE WHEN e.id IS NULL THEN v.distance_bound_after_relative ELSE e.distance_bound_after_relative END
               AS distance_bound_after_relative,
           e.repair_iterations, e.repair_weight_change, e.number AS repair_version,
           e.weights_sha256 AS repair_weights_sha256, b.coefficient_residual, b.factor_method, v.device,
           b.distance_bound_start_relative, e.repair_tolerance, b.factor_age_s, v.publication_epsilon,
           v.publication_delta, v.publications_planned, v.publication_mu,
           coalesce(e.commitment_salt, v.commitment_salt) AS commitment_salt,
           r.due_at, CASE WHEN r.ended_at IS NULL AND r.held_at IS NULL AND r.due_at < now() THEN true
               ELSE r.ended_late END AS late,
           r.ended_at, r.handled_at, r.handled_by, b.nodes_joined, b.edges_joined, b.features_joined, b.labels_joined,
           b.directions_gained, a.joined, a.rejoined, a.training_norm_before, a.training_norm_after, r.held_at
    FROM requests r
    LEFT JOIN request_audits a ON a.request_id = r.id AND r.status IN ('applied', 'completed')
    LEFT JOIN batches b ON b.id = a.batch_id LEFT JOIN versions v ON v.id = b.id
    LEFT JOIN versions e ON e.model = v.model AND e.number = v.repair_version;
