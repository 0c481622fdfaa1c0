//! Tiles of matrix products, shared by the matrix product and the scan.
//!
//! A workgroup computes a tile of `C[i, j] += Σ_k A[i, k] B[j, k]`, each invocation a small block of it in named `vec4`
//! accumulators. Operands come through loaders, which may compute what they load. On GPUs the operands are staged through
//! workgroup memory; software devices read them directly, since barriers cost them more than repeated loads.

use crate::emit::{KernelBuilder, Num, Width};

/// Shape of a tile and of an invocation's block in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of the tile (axis i).
    pub rows: u32,
    /// Columns of the tile (axis j), a multiple of 4.
    pub cols: u32,
    /// Rows of an invocation's block; a multiple of 4 when staged.
    pub block_rows: u32,
    /// Columns of an invocation's block, a multiple of 4.
    pub block_cols: u32,
    /// Depth of a staged step, a multiple of 4.
    pub depth: u32,
    /// Whether operands go through workgroup memory.
    pub staged: bool,
}

/// Along which axis four neighbours of an operand can be loaded at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quad {
    /// Along k.
    Depth,
    /// Along the operand's own axis (i for A, j for B).
    Own,
    /// Nowhere.
    None,
}

/// A position with a number known to divide it.
#[derive(Clone, Debug)]
pub struct At {
    /// Expression.
    pub expr: String,
    /// Divisor.
    pub align: u64,
}

impl At {
    /// A position.
    pub fn new(expr: impl Into<String>, align: u64) -> Self {
        Self { expr: expr.into(), align }
    }
}

/// Emits an operand at (own position, k), one element or four along the axis of `quad`.
pub type LoadFn<'x> = dyn Fn(&mut KernelBuilder<'_>, &At, &At, Width) -> String + 'x;

/// One operand of a tile product.
pub struct Loader<'x> {
    /// The element.
    pub load: &'x LoadFn<'x>,
    /// Where four neighbours are at hand.
    pub quad: Quad,
    /// First position of the tile along the own axis.
    pub origin: At,
    /// Size of the own axis; positions past it are read at its end and never stored.
    pub limit: Num,
}

impl std::fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").field("quad", &self.quad).field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// Range of k: from `begin` (a multiple of the depth) up to `end`, which may stop short of `limit`, the size of the axis.
#[derive(Clone, Debug)]
pub struct Depth {
    /// First position.
    pub begin: String,
    /// End of this workgroup's range.
    pub end: String,
    /// Whether every step of 4, and of the tile's depth, is whole.
    pub whole: bool,
    /// Whether every step of 4 is whole.
    pub whole_quads: bool,
}

impl Depth {
    /// All of an axis of size `n`.
    pub fn all(kb: &mut KernelBuilder<'_>, n: &Num, tile: &Tile) -> Self {
        let step = if tile.staged { u64::from(tile.depth) } else { 4 };
        Self { begin: "0u".to_owned(), end: kb.num(n), whole: n.factor().is_multiple_of(step), whole_quads: n.is_multiple_of_4() }
    }
}

/// How side sums are gathered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sides {
    /// How many.
    pub count: u32,
    /// Whether A is loaded four along k.
    pub by_quads: bool,
}

/// A sum over k of a value at (i, k), gathered while A is loaded.
pub struct SideSum<'x> {
    /// The summand, four along k or one.
    pub load: &'x LoadFn<'x>,
}

impl std::fmt::Debug for SideSum<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SideSum").finish_non_exhaustive()
    }
}

impl Tile {
    /// Invocations a workgroup.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        (self.rows / self.block_rows) * (self.cols / self.block_cols)
    }

    const fn quads(&self) -> u32 {
        self.block_cols / 4
    }

    /// Name of the accumulator of block row `i`, columns `4 j..4 j + 4`.
    #[must_use]
    pub fn acc(i: u32, j: u32) -> String {
        format!("acc{i}_{j}")
    }

    /// Declares workgroup arrays and accumulators, and the invocation's place in the tile.
    pub fn declare(&self, kb: &mut KernelBuilder<'_>, sides: Sides) {
        if self.staged {
            let text = format!(
                "var<workgroup> a_s: array<vec4<f32>, {}>;\nvar<workgroup> b_s: array<vec4<f32>, {}>;",
                self.depth * self.rows / 4,
                self.depth * self.cols / 4
            );
            kb.global(&text, u64::from((self.rows + self.cols) * self.depth * 4));
            for side in 0..sides.count {
                let n = self.rows * self.side_partials(sides);
                kb.global(&format!("var<workgroup> side{side}_s: array<f32, {n}>;"), u64::from(n) * 4);
            }
        }
        let across = self.cols / self.block_cols;
        kb.line(format!("let block_i = (lid / {across}u) * {}u;", self.block_rows));
        kb.line(format!("let block_j = (lid % {across}u) * {}u;", self.block_cols));
        for i in 0..self.block_rows {
            for j in 0..self.quads() {
                kb.line(format!("var {} = vec4<f32>(0.0);", Self::acc(i, j)));
            }
        }
        for side in 0..sides.count {
            for slot in 0..self.side_slots(sides) {
                kb.line(format!("var side{side}_{slot} = 0.0;"));
            }
        }
    }

    /// Partial side sums an invocation keeps: its loads of A a step when staged, else its rows.
    fn side_slots(&self, sides: Sides) -> u32 {
        if self.staged { self.loads(self.rows, if sides.by_quads { Quad::Depth } else { Quad::None }) } else { self.block_rows }
    }

    /// Partial side sums of a row in workgroup memory.
    const fn side_partials(&self, sides: Sides) -> u32 {
        if sides.by_quads { self.depth / 4 } else { self.depth }
    }

    /// Loads of an operand a staged step and invocation.
    fn loads(&self, own: u32, quad: Quad) -> u32 {
        let each = if quad == Quad::None { 1 } else { 4 };
        (own * self.depth / each).div_ceil(self.threads())
    }

    /// Appends the loop over k.
    pub fn accumulate(&self, kb: &mut KernelBuilder<'_>, depth: &Depth, a: &Loader<'_>, b: &Loader<'_>, sides: &[SideSum<'_>]) {
        if self.staged { self.accumulate_staged(kb, depth, a, b, sides) } else { self.accumulate_direct(kb, depth, a, b, sides) }
    }

    // -- staged ----------------------------------------------------------------------------------------------------

    fn accumulate_staged(&self, kb: &mut KernelBuilder<'_>, depth: &Depth, a: &Loader<'_>, b: &Loader<'_>, sides: &[SideSum<'_>]) {
        let k = kb.fresh("k");
        kb.open(format!("for (var {k} = {}; {k} < {}; {k} += {}u)", depth.begin, depth.end, self.depth));
        self.stage(kb, depth, a, "a_s", self.rows, &k, sides);
        self.stage(kb, depth, b, "b_s", self.cols, &k, &[]);
        kb.line("workgroupBarrier();");
        for step in 0..self.depth {
            self.multiply_step(kb, step);
        }
        kb.line("workgroupBarrier();");
        kb.close();
    }

    /// The products of one staged k.
    fn multiply_step(&self, kb: &mut KernelBuilder<'_>, step: u32) {
        kb.open("");
        for i in 0..self.block_rows / 4 {
            kb.line(format!("let a{i} = a_s[{}u + block_i / 4u + {i}u];", step * self.rows / 4));
        }
        for j in 0..self.quads() {
            kb.line(format!("let b{j} = b_s[{}u + block_j / 4u + {j}u];", step * self.cols / 4));
        }
        for i in 0..self.block_rows {
            for j in 0..self.quads() {
                let acc = Self::acc(i, j);
                kb.line(format!("{acc} = fma(vec4<f32>(a{}[{}]), b{j}, {acc});", i / 4, i % 4));
            }
        }
        kb.close();
    }

    /// Copies an operand's part of the tile to workgroup memory, `[k][own]`, four neighbours of the own axis a word.
    #[allow(clippy::too_many_arguments, reason = "one call site for each operand; the arguments are the operand")]
    fn stage(&self, kb: &mut KernelBuilder<'_>, depth: &Depth, loader: &Loader<'_>, array: &str, own: u32, k: &str, sides: &[SideSum<'_>]) {
        let quad = if loader.quad == Quad::Depth && !depth.whole_quads { Quad::None } else { loader.quad };
        let threads = self.threads();
        let loads = self.loads(own, quad);
        let total = own * self.depth / if quad == Quad::None { 1 } else { 4 };
        for load in 0..loads {
            let whole = (load + 1) * threads <= total;
            let q = kb.bind(format!("lid + {}u", load * threads));
            kb.open(if whole { String::new() } else { format!("if ({q} < {total}u)") });
            let (at, step) = match quad {
                Quad::Own => (format!("({q} % {}u) * 4u", own / 4), format!("{q} / {}u", own / 4)),
                Quad::Depth => (format!("{q} / {}u", self.depth / 4), format!("({q} % {}u) * 4u", self.depth / 4)),
                Quad::None => (format!("{q} / {}u", self.depth), format!("{q} % {}u", self.depth)),
            };
            let (at, step) = (kb.bind(at), kb.bind(step));
            self.stage_one(kb, depth, loader, array, own, quad, &at, &step, k, sides, load);
            kb.close();
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the body of the loop of `stage`")]
    fn stage_one(
        &self,
        kb: &mut KernelBuilder<'_>,
        depth: &Depth,
        loader: &Loader<'_>,
        array: &str,
        own: u32,
        quad: Quad,
        at: &str,
        step: &str,
        k: &str,
        sides: &[SideSum<'_>],
        slot: u32,
    ) {
        let position = clamp_position(kb, loader, at, quad == Quad::Own);
        let k_at = kb.bind(format!("{k} + {step}"));
        let k_at = At::new(k_at, if quad == Quad::Depth { 4 } else { 1 });
        let (ty, width) = if quad == Quad::None { ("f32", Width::One) } else { ("vec4<f32>", Width::Four) };
        let x = kb.fresh("x");
        kb.line(format!("var {x} = {ty}(0.0);"));
        kb.open(if depth.whole { String::new() } else { format!("if ({} < {})", k_at.expr, depth.end) });
        let loaded = (loader.load)(kb, &position, &k_at, width);
        kb.line(format!("{x} = {loaded};"));
        for (side, sum) in sides.iter().enumerate() {
            let summand = (sum.load)(kb, &position, &k_at, width);
            kb.line(format!("side{side}_{slot} += {};", horizontal_sum(&summand, width)));
        }
        kb.close();
        match quad {
            Quad::Own => kb.line(format!("{array}[{step} * {}u + {at} / 4u] = {x};", own / 4)),
            Quad::Depth => {
                for lane in 0..4 {
                    kb.line(format!("{array}[({step} + {lane}u) * {}u + {at} / 4u][{at} & 3u] = {x}[{lane}];", own / 4));
                }
            }
            Quad::None => kb.line(format!("{array}[{step} * {}u + {at} / 4u][{at} & 3u] = {x};", own / 4)),
        }
    }

    // -- direct ----------------------------------------------------------------------------------------------------

    fn accumulate_direct(&self, kb: &mut KernelBuilder<'_>, depth: &Depth, a: &Loader<'_>, b: &Loader<'_>, sides: &[SideSum<'_>]) {
        let rows: Vec<At> = (0..self.block_rows)
            .map(|i| {
                let at = kb.bind(format!("block_i + {i}u"));
                clamp_position(kb, a, &at, false)
            })
            .collect();
        let by_columns = b.quad == Quad::Own;
        let cols: Vec<At> = (0..if by_columns { self.quads() } else { self.block_cols })
            .map(|j| {
                let at = kb.bind(format!("block_j + {}u", if by_columns { 4 * j } else { j }));
                clamp_position(kb, b, &at, by_columns)
            })
            .collect();
        let k = kb.fresh("k");
        kb.open(format!("for (var {k} = {}; {k} < {}; {k} += 4u)", depth.begin, depth.end));
        let a_quads: Vec<String> = rows.iter().map(|row| load_along_depth(kb, depth, a.load, a.quad, row, &k)).collect();
        for (side, sum) in sides.iter().enumerate() {
            for (i, row) in rows.iter().enumerate() {
                let summand = load_along_depth(kb, depth, sum.load, a.quad, row, &k);
                kb.line(format!("side{side}_{i} += {};", horizontal_sum(&summand, Width::Four)));
            }
        }
        if by_columns {
            self.direct_by_columns(kb, depth, b, &a_quads, &cols, &k);
        } else {
            self.direct_by_dots(kb, depth, b, &a_quads, &cols, &k);
        }
        kb.close();
    }

    fn direct_by_dots(&self, kb: &mut KernelBuilder<'_>, depth: &Depth, b: &Loader<'_>, a_quads: &[String], cols: &[At], k: &str) {
        for j in 0..self.quads() {
            let quads: Vec<String> =
                cols[4 * j as usize..4 * j as usize + 4].iter().map(|col| load_along_depth(kb, depth, b.load, b.quad, col, k)).collect();
            for (i, a) in (0..).zip(a_quads) {
                let dots: Vec<String> = quads.iter().map(|quad| format!("dot({a}, {quad})")).collect();
                kb.line(format!("{} += vec4<f32>({});", Self::acc(i, j), dots.join(", ")));
            }
        }
    }

    fn direct_by_columns(&self, kb: &mut KernelBuilder<'_>, depth: &Depth, b: &Loader<'_>, a_quads: &[String], cols: &[At], k: &str) {
        for lane in 0..4 {
            let k_lane = kb.bind(format!("{k} + {lane}u"));
            for (j, col) in (0..).zip(cols) {
                let x = kb.fresh("b");
                kb.line(format!("var {x} = vec4<f32>(0.0);"));
                kb.open(if depth.whole_quads { String::new() } else { format!("if ({k_lane} < {})", depth.end) });
                let loaded = (b.load)(kb, col, &At::new(k_lane.clone(), 1), Width::Four);
                kb.line(format!("{x} = {loaded};"));
                kb.close();
                for (i, a) in (0..).zip(a_quads) {
                    let acc = Self::acc(i, j);
                    kb.line(format!("{acc} = fma(vec4<f32>({a}[{lane}]), {x}, {acc});"));
                }
            }
        }
    }

    // -- the end ---------------------------------------------------------------------------------------------------

    /// After the loops: identifiers of the side sums of each of the invocation's rows, `[side][row]`.
    pub fn finish_sides(&self, kb: &mut KernelBuilder<'_>, sides: Sides) -> Vec<Vec<String>> {
        if sides.count == 0 {
            return Vec::new();
        }
        if !self.staged {
            return (0..sides.count).map(|side| (0..self.block_rows).map(|i| format!("side{side}_{i}")).collect()).collect();
        }
        let partials = self.side_partials(sides);
        for side in 0..sides.count {
            for slot in 0..self.side_slots(sides) {
                // A load's place in the tile does not change from step to step, so neither does its row.
                let q = kb.bind(format!("lid + {}u", slot * self.threads()));
                kb.line(format!("if ({q} < {}u) {{ side{side}_s[{q}] = side{side}_{slot}; }}", self.rows * partials));
            }
        }
        kb.line("workgroupBarrier();");
        (0..sides.count)
            .map(|side| {
                (0..self.block_rows)
                    .map(|i| {
                        let terms: Vec<String> =
                            (0..partials).map(|p| format!("side{side}_s[(block_i + {i}u) * {partials}u + {p}u]")).collect();
                        kb.bind(terms.join(" + "))
                    })
                    .collect()
            })
            .collect()
    }

    /// Calls `store` for each accumulator with block row, row position, first column position and name.
    pub fn for_each_block(
        &self,
        kb: &mut KernelBuilder<'_>,
        row: &At,
        col: &At,
        mut store: impl FnMut(&mut KernelBuilder<'_>, u32, &At, &At, &str),
    ) {
        for i in 0..self.block_rows {
            let row_at = kb.bind(join_sum(&row.expr, &format!("block_i + {i}u")));
            for j in 0..self.quads() {
                let col_at = kb.bind(join_sum(&col.expr, &format!("block_j + {}u", 4 * j)));
                let align = if col.align.is_multiple_of(4) { 4 } else { 1 };
                store(kb, i, &At::new(row_at.clone(), 1), &At::new(col_at, align), &Self::acc(i, j));
            }
        }
    }
}

fn join_sum(a: &str, b: &str) -> String {
    if a == "0u" { b.to_owned() } else { format!("{a} + {b}") }
}

fn horizontal_sum(x: &str, width: Width) -> String {
    match width {
        Width::One => x.to_owned(),
        Width::Four => format!("dot({x}, vec4<f32>(1.0))"),
    }
}

/// Position `at` of the tile as a position of the operand, held inside it.
fn clamp_position(kb: &mut KernelBuilder<'_>, loader: &Loader<'_>, at: &str, is_quad: bool) -> At {
    let limit = kb.num(&loader.limit);
    let last = if is_quad { 4 } else { 1 };
    let sum = join_sum(&loader.origin.expr, at);
    let expr = kb.bind(format!("min({sum}, {limit} - {last}u)"));
    At::new(expr, if is_quad { 4 } else { 1 })
}

/// Four neighbours along k from `k`, zero past the end.
fn load_along_depth(kb: &mut KernelBuilder<'_>, depth: &Depth, load: &LoadFn<'_>, quad: Quad, own: &At, k: &str) -> String {
    if quad == Quad::Depth && depth.whole_quads {
        return load(kb, own, &At::new(k, 4), Width::Four);
    }
    let lanes: Vec<String> = (0..4)
        .map(|lane| {
            let at = kb.bind(if lane == 0 { k.to_owned() } else { format!("{k} + {lane}u") });
            if depth.whole_quads {
                return load_one(kb, load, quad, own, &At::new(at, 1));
            }
            let inside = kb.bind(format!("min({at}, {} - 1u)", depth.end));
            let x = load_one(kb, load, quad, own, &At::new(inside, 1));
            kb.bind(format!("select(0.0, {x}, {at} < {})", depth.end))
        })
        .collect();
    kb.bind(format!("vec4<f32>({})", lanes.join(", ")))
}

/// One element of an operand whose loader gives single elements on request.
fn load_one(kb: &mut KernelBuilder<'_>, load: &LoadFn<'_>, _quad: Quad, own: &At, k: &At) -> String {
    load(kb, own, k, Width::One)
}
