//! A picture as pixels, on which `plotters` draws: letters come from a table, so that no font of the system is needed.

use font8x8::legacy::BASIC_LEGACY;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind};
use std::convert::Infallible;

/// Pixels of a letter, along either side.
const LETTER: u32 = 8;
/// Size of text, in pixels as `plotters` counts them, from which on a letter is drawn at twice its size.
const LARGE: f64 = 20.0;

/// An RGB picture, white at first.
#[derive(Debug)]
pub(super) struct Pixels {
    width: u32,
    height: u32,
    /// Rows from the top, three bytes a pixel.
    rgb: Vec<u8>,
}

impl Pixels {
    pub(super) fn new([width, height]: [u16; 2]) -> Self {
        let n_bytes = 3 * usize::from(width) * usize::from(height);
        Self { width: width.into(), height: height.into(), rgb: vec![255; n_bytes] }
    }

    /// The picture as a PNG file.
    ///
    /// # Errors
    /// What the encoder says, which only a picture without pixels gives it reason to.
    pub(super) fn encode(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()?;
        Ok(bytes)
    }

    /// Mixes a color into a pixel; those outside of the picture are left out.
    fn mix(&mut self, (x, y): BackendCoord, color: BackendColor) {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return };
        if x >= self.width || y >= self.height {
            return;
        }
        let first = 3 * (y as usize * self.width as usize + x as usize);
        let (r, g, b) = color.rgb;
        for (place, new) in self.rgb.iter_mut().skip(first).zip([r, g, b]) {
            let mixed = f64::from(*place) + (f64::from(new) - f64::from(*place)) * color.alpha.clamp(0.0, 1.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two bytes")]
            let mixed = mixed.round() as u8;
            *place = mixed;
        }
    }
}

impl DrawingBackend for &mut Pixels {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn draw_pixel(&mut self, at: BackendCoord, color: BackendColor) -> Result<(), DrawingErrorKind<Infallible>> {
        self.mix(at, color);
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Result<(), DrawingErrorKind<Infallible>> {
        let scale = scale(style.size());
        let (width, height) = text_size(text, scale);
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Right => -width,
            HPos::Center => -width / 2,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        for (x, y) in dots(text, scale) {
            let (x, y) = style.transform().transform(left + x, top + y);
            self.mix((at.0 + x, at.1 + y), style.color());
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(&self, text: &str, style: &S) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (width, height) = text_size(text, scale(style.size()));
        Ok((width.unsigned_abs(), height.unsigned_abs()))
    }
}

/// Pixels along either side of a letter's dot.
fn scale(size: f64) -> i32 {
    if size >= LARGE { 2 } else { 1 }
}

/// Width and height of a line of text, in pixels.
fn text_size(text: &str, scale: i32) -> (i32, i32) {
    let (letter, n) = (LETTER.cast_signed() * scale, i32::try_from(text.chars().count()).unwrap_or(i32::MAX));
    (n.saturating_mul(letter), letter)
}

/// Pixels of a line of text, from its upper left corner; a letter beyond ASCII is a question mark.
fn dots(text: &str, scale: i32) -> impl Iterator<Item = (i32, i32)> {
    let glyph = |letter: char| {
        let code = if letter.is_ascii() { letter } else { '?' };
        BASIC_LEGACY.get(code as usize).copied().unwrap_or_default()
    };
    let places = text.chars().map(glyph).zip(0..).flat_map(|(rows, column)| {
        let dots = (0..LETTER.cast_signed()).flat_map(move |y| (0..LETTER.cast_signed()).map(move |x| (x, y)));
        // The lowest bit of a row is its leftmost dot.
        let is_set = move |&(x, y): &(i32, i32)| usize::try_from(y).is_ok_and(|y| rows[y] >> x & 1 == 1);
        dots.filter(is_set).map(move |(x, y)| (column * LETTER.cast_signed() + x, y))
    });
    places.flat_map(move |(x, y)| (0..scale).flat_map(move |dy| (0..scale).map(move |dx| (x * scale + dx, y * scale + dy))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_have_the_shape_of_the_table() {
        let picture = |text: &str, scale: i32| {
            let (width, height) = text_size(text, scale);
            let set: Vec<_> = dots(text, scale).collect();
            let row = |y| (0..width).map(|x| if set.contains(&(x, y)) { '#' } else { '.' }).collect::<String>();
            (0..height).map(row).collect::<Vec<_>>()
        };
        let l = picture("L", 1);
        assert_eq!((l[0].as_str(), l[5].as_str(), l[7].as_str()), ("####....", ".##..##.", "........"));
        // Twice the size is the same shape; a letter that is missing is a question mark.
        assert_eq!(picture("L", 2)[0], "########........");
        assert_eq!((picture("é", 1), picture("", 1)), (picture("?", 1), vec![String::new(); 8]));
        assert_eq!(picture("?L", 1)[0].split_at(8).1, "####....");
    }

    #[test]
    fn colors_mix_and_stay_in_the_picture() {
        let mut pixels = Pixels::new([3, 2]);
        let half = BackendColor { alpha: 0.5, rgb: (0, 255, 155) };
        for at in [(2, 1), (3, 1), (-1, 0), (0, 2), (i32::MIN, i32::MAX)] {
            pixels.mix(at, half);
        }
        assert_eq!(pixels.rgb.iter().filter(|&&byte| byte != 255).count(), 2);
        assert_eq!(pixels.rgb[15..], [128, 255, 205]);
    }

    #[test]
    fn the_file_decodes_to_the_picture() {
        let mut pixels = Pixels::new([5, 3]);
        pixels.mix((4, 2), BackendColor { alpha: 1.0, rgb: (1, 2, 3) });
        let bytes = pixels.encode().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut rgb).unwrap();
        assert_eq!((info.width, info.height, rgb), (5, 3, pixels.rgb));
        assert!(Pixels::new([0, 4]).encode().is_err());
    }
}
